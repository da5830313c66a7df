"""A site over two far hosts: network namespaces with homes of their own, reached over tcp alone."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from far_hosts import FarHost, close_bridge, open_bridge

# Plain `pytest` may not make namespaces: these tests are `tests/run hosts`.
collect_ignore_glob = [] if "TRIVET_FAR_HOSTS" in os.environ else ["test_*.py"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tv") as made:  # short: socket paths hold 107 bytes
        yield Path(made)


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[dict[str, FarHost]]:
    open_bridge()
    made = {name: FarHost(name, number, folder) for name, number in (("a", 2), ("b", 3))}
    try:
        for host in made.values():
            host.open()
        yield made
    finally:
        for host in made.values():
            host.close()
        close_bridge()
