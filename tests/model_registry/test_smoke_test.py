"""A bundle's model is tried as a launch would run it: on its device, in the interpreter of its engines."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trivet.client.results import Plan
from trivet.config import BackendSettings, Settings
from trivet.errors import ModelFilesError
from trivet_registry.bundles.smoke_test import SMALL, answers_one_token

ENGINES = """#!{python}
import json, os, resource, sys, time
end_s = time.monotonic() + 30
while {waits} and resource.getrlimit(resource.RLIMIT_DATA)[0] < 0 and time.monotonic() < end_s:
    time.sleep(0.01)  # the limit comes right after the start
held = [*os.sched_getaffinity(0)], resource.getrlimit(resource.RLIMIT_DATA)[0]
json.dump([sys.argv[1:], dict(os.environ), held], open({said!r}, "w"))
sys.exit({code})
"""


class Site:
    """Whose engines of `fake` have an interpreter that writes down how it was called."""

    def __init__(self, home: Path, code: int = 0, **confined: Any) -> None:
        self.said = home / "said"
        self.python = home / "engines-python"
        self.python.write_text(self._script(code, waits="memory_limit_gib" in confined))
        self.python.chmod(0o755)
        engines = BackendSettings(python=str(self.python), env={"FAKE": "7"}, **confined)
        self.settings = Settings(home=str(home), backend={"fake": engines})
        self.asked: list[Mapping[str, str]] = []

    def _script(self, code: int, waits: bool) -> str:
        return ENGINES.format(python=sys.executable, said=str(self.said), code=code, waits=waits)

    def plan(self, path: Path, settings: Mapping[str, str]) -> Plan:
        self.asked.append(settings)
        return Plan(backend="fake", device="FAKE-1", num_blocks=(16,))


def test_the_token_is_asked_in_the_environment_of_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_DATABASE_URL", "postgresql://secret@host/db")
    site = Site(tmp_path)
    answers_one_token(tmp_path / "model", site.settings, site.plan)
    arguments, environment, _ = json.loads(site.said.read_text())
    assert site.asked == [SMALL]
    told = dict(itertools.pairwise(arguments))
    assert (told["run"], told["--backend"], told["--device"]) == (str(tmp_path / "model"), "fake", "FAKE-1")
    assert {f"{name}={value}" for name, value in SMALL.items()} <= {*arguments}
    assert (environment["FAKE"], environment["TRIVET_HOME"]) == ("7", str(tmp_path))
    assert "TRIVET_DATABASE_URL" not in environment


def test_what_answers_nothing_fits_nowhere_or_cannot_be_started_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path, code=3)
    with pytest.raises(ModelFilesError, match="one token: exit status 3; it was not registered"):
        answers_one_token(tmp_path, site.settings, site.plan)
    site.python.unlink()
    with pytest.raises(ModelFilesError, match=r"which \[backend\.fake\] names, cannot be started: No such"):
        answers_one_token(tmp_path, site.settings, site.plan)
    full = Plan(fits=False, reason="2 GiB are missing")
    with pytest.raises(ModelFilesError, match="one token: 2 GiB are missing"):
        answers_one_token(tmp_path, site.settings, lambda *_: full)


def test_it_has_the_cores_and_the_memory_that_an_engine_would_have(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    site = Site(tmp_path, cpus=str(core), memory_limit_gib=1.5)
    answers_one_token(tmp_path, site.settings, site.plan)
    *_, held = json.loads(site.said.read_text())
    assert held == [[core], 3 << 29]
    assert os.sched_getaffinity(0) == before
    site = Site(tmp_path, cpus="99999")
    with pytest.raises(ModelFilesError, match=r"one token: .*99999"):
        answers_one_token(tmp_path, site.settings, site.plan)
