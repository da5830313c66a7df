"""nginx before real sites. The tests of this folder are `tests/run operations`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # front
sys.path.append(str(Path(__file__).parents[2] / "docker"))  # handbook, monitoring
from front import Front, Pair

# Plain `pytest` has neither nginx nor Prometheus.
collect_ignore_glob = [] if "TRIVET_OPERATIONS_TIER" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A certificate that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = Pair(folder / "fullchain.pem", folder / "privkey.pem")
    names = "subjectAltName=DNS:localhost,DNS:llm.example.com,IP:127.0.0.1"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    who = ["-subj", "/CN=llm.example.com", "-addext", names]
    files = ["-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run(["openssl", "req", "-x509", *kind, *who, *files], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def new_front(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Callable[..., Front]]:
    """A function of the ports of sites, and of what stands otherwise in trivet.conf: a running nginx."""
    fronts: list[Front] = []

    def make(*ports: int, changes: Mapping[str, str] | None = None) -> Front:
        fronts.append(Front(tmp_path_factory.mktemp("nginx"), ports, pair, changes or {}))
        return fronts[-1]

    yield make
    for front in fronts:
        front.stop()
