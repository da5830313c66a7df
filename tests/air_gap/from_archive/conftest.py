from __future__ import annotations

import os

# Plain `pytest` has no archive: these tests are `tests/run airgap`.
collect_ignore_glob = [] if "TRIVET_AIRGAP_CACHE" in os.environ else ["test_*.py"]
