"""Tests of the tier `clients`: they have an environment of their own, without Trivet."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

collect_ignore_glob = [] if "TRIVET_CLIENTS_URL" in os.environ else ["test_*.py"]


class Server(NamedTuple):
    """Where it is, its token and its home, a model file on its host, and the Python that has Trivet."""

    url: str
    token: str
    model_file: str
    python: str
    home: str


@pytest.fixture(scope="session")
def server() -> Server:
    return Server(
        *(os.environ[f"TRIVET_CLIENTS_{name}"] for name in ("URL", "TOKEN", "MODEL", "PYTHON", "HOME"))
    )
