"""What tests of other hosts share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trivet_supervisor.hosts import host_link

sys.path.append(str(Path(__file__).parent))  # far_site
import far_site


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return far_site.eventually


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[far_site.Far]:
    monkeypatch.setattr(host_link, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(host_link, "HELLO_INTERVAL_S", 0.05)
    monkeypatch.setattr(host_link, "SILENT_S", 0.5)
    made = far_site.Far(tmp_path)
    yield made
    made.wire.is_cut = False
    made.launcher.close()
    for handle in [handle for agent in made.agents for handle in agent._handles.values()]:
        handle.kill()
        far_site.eventually(lambda ended=handle.exit_code: ended() is not None)
