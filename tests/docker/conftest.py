"""For the tests of what docker/ has for the machines around Trivet."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # monitoring
