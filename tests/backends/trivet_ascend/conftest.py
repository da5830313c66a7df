"""The emulated NPU's plugin, importable in these tests; other tests do not see it."""

from __future__ import annotations

import sys
from pathlib import Path

EMULATED = Path(__file__).parent / "emulated"
# Its entry point is found by subprocesses that get this folder in PYTHONPATH.
sys.path.append(str(EMULATED))
