"""Engines that a serve has left: one that cannot come up ends none, a stop finds them without a registry."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from trivet.config import Settings
from trivet.errors import Unavailable
from trivet_supervisor.client import SupervisorClient
from trivet_supervisor.parent import Parent

if TYPE_CHECKING:
    from conftest import Site

pytestmark = pytest.mark.faults


def test_a_serve_whose_web_cannot_come_up_ends_no_engine(site: Site) -> None:
    site.serve()
    site.launch("m", "null")
    engines = site.engine_pids()
    assert engines
    assert site.parent is not None
    site.parent.send_signal(signal.SIGKILL)
    site.parent.wait(60)
    site.wait_for(
        "web and supervisor notice", lambda: site.engine_pids() == [p.pid for p in site.processes()]
    )

    parent = Parent(Settings(home=str(site.home), port=site.port))
    adopted = "from trivet_supervisor.client import SupervisorClient as C; from trivet.config import Paths\n"
    adopted += f"import pathlib, time; client = C(Paths(pathlib.Path({str(site.home)!r})))\n"
    adopted += "while not ((status := client.status()) and status.num_followed): time.sleep(0.1)\n"
    parent.web._command = [sys.executable, "-c", f"{adopted}raise SystemExit(2)"]
    with pytest.raises(Unavailable, match=r"web ended with exit code 2; engines that run are left"):
        parent.run(lambda: None)
    assert site.engine_pids() == engines
    assert SupervisorClient(parent._settings.paths).status() is None, "its children have ended"

    site.serve()
    site.wait_ready("m")
    assert site.engine_pids() == engines
    assert site.stop() == 0
    assert not site.processes()


def test_a_stop_finds_engines_whose_registry_was_deleted(site: Site) -> None:
    site.serve()
    site.launch("m", "null")
    assert site.parent is not None
    site.parent.send_signal(signal.SIGKILL)
    site.parent.wait(60)
    site.wait_for(
        "web and supervisor notice", lambda: site.engine_pids() == [p.pid for p in site.processes()]
    )
    for file in site.home.glob("registry.db*"):
        file.unlink()
    done = site.run("stop", "--all")
    assert (done.stdout, done.returncode) == ("stopped without a supervisor: 1 engine\n", 0)
    site.wait_for("the engine has ended", lambda: not site.processes())
