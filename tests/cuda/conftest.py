"""Tests of the tier `cuda`: in `interpreted` under Triton's interpreter, in `compiled` without it.

Which of the two Triton does is decided where a kernel is defined, so each has a process of its own.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE / "interpreter"), str(HERE / "ahead_of_time")]
HAS_TRITON = find_spec("triton") is not None and "TRIVET_CUDA_TIER" in os.environ
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore = ["interpreter", "ahead_of_time"]
if not (HAS_TRITON and IS_INTERPRETED):
    collect_ignore.append("interpreted")
if not HAS_TRITON or IS_INTERPRETED:
    collect_ignore.append("compiled")
