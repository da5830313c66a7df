"""The comparison is no part of the product: its package is found here and is installed nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
