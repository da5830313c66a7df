"""What joins the far hosts: here the tests' own agents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Protocol

from far_hosts import FarHost

HERE = Path(__file__).parent
AGENT_PORT = "7070"


class Cluster(Protocol):
    """How a site reaches its hosts."""

    environ: dict[str, str]  # of the site's own host

    def prepare(self, home: Path) -> None:
        """The home of the site's own host exists; it does not serve yet."""

    def join(self, host: FarHost) -> None:
        """Start on a host what answers for it, at first or after it had died."""

    def end_agent(self, host: FarHost) -> None:
        """What answers for the host dies; its engines do not."""

    def restart_head(self) -> None:
        """What the cluster cannot do without is gone for a while."""

    def close(self) -> None:
        """Nothing is left on the site's own host."""


class FarCluster:
    """Agents of the tests, reached over tcp (`trivet_far`)."""

    def __init__(self, hosts: dict[str, FarHost], folder: Path) -> None:
        info = folder / "trivet_far-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trivet-far\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[trivet.plugins]\nfar = trivet_far\n")
        self.environ = {"TRIVET_LAUNCHER": "far", "PYTHONPATH": f"{folder}:{HERE}"}
        self._addresses = {name: host.address for name, host in hosts.items()}

    def prepare(self, home: Path) -> None:
        (home / "far_hosts.json").write_text(json.dumps(self._addresses))

    def join(self, host: FarHost) -> None:
        host.run([sys.executable, str(HERE / "far_agent.py"), host.name, host.address, AGENT_PORT])

    def end_agent(self, host: FarHost) -> None:
        host.kill_by("far_agent.py")

    def restart_head(self) -> None:
        """It has none."""

    def close(self) -> None:
        """Its agents end with their hosts."""
