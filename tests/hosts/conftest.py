"""A site over two far hosts: network namespaces with homes of their own, reached over tcp alone."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from clusters import RayCluster
from far_hosts import FarHost, close_bridge, open_bridge
from head import Head, engines_of

DAY_S = 24 * 60 * 60
# Plain `pytest` may not make namespaces: these tests are `tests/run hosts`.
collect_ignore_glob = [] if "TRIVET_FAR_HOSTS" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tv") as made:  # short: socket paths hold 107 bytes
        yield Path(made)


@pytest.fixture(scope="session")
def hosts(folder: Path) -> Iterator[dict[str, FarHost]]:
    open_bridge()
    made = {"a": FarHost("a", 2, folder), "b": FarHost("b", 3, folder, up_s=10 * DAY_S)}
    try:
        for host in made.values():
            host.open()
        yield made
    finally:
        for host in made.values():
            host.close()
        close_bridge()


@pytest.fixture(scope="session")
def cluster(hosts: dict[str, FarHost], folder: Path) -> Iterator[RayCluster]:
    made = RayCluster(hosts, folder)
    yield made
    made.close()


@pytest.fixture(scope="session")
def head(cluster: RayCluster, hosts: dict[str, FarHost], folder: Path) -> Iterator[Head]:
    for host in hosts.values():
        cluster.join(host)
    made = Head(folder / "head", cluster.environ)
    made.serve()
    made.knows(*hosts.values())
    yield made
    made.close()
    left = engines_of(hosts)
    for host in hosts.values():
        host.kill()
    assert left == {"a": 0, "b": 0}, "Ctrl-C ends engines wherever they are"
