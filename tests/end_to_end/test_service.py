"""`serve` as its unit has systemd start and stop it."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from conftest import Site


def test_it_is_ready_when_it_says_so_and_ends_by_sigterm(site: Site, tmp_path: Path) -> None:
    shown = site.run("service", "show", "--user")
    assert shown.returncode == 0, shown.stderr
    unit = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
    assert unit["Environment"] == f"TRIVET_HOME={site.home}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{tmp_path}/notify")
        manager.settimeout(120)
        with site.log.open("wb") as log:
            site.parent = subprocess.Popen(
                unit["ExecStart"].split(),
                env={**site.environ, "NOTIFY_SOCKET": f"{tmp_path}/notify"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        said = manager.recv(1000).decode()
    assert said.splitlines()[0] == "READY=1"
    assert httpx2.get(f"{site.base_url}/health/live", timeout=60).status_code == 200
    site.launch("m", "null")
    site.parent.send_signal(signal.SIGTERM)
    assert site.parent.wait(float(unit["TimeoutStopSec"])) == 0
    assert not site.processes()
