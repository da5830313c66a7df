"""What joins the far hosts: a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from far_hosts import NET, FarHost, wait_for

import trivet
from trivet.config import inherited_environment

HERE = Path(__file__).parent
RAY_PORT = str(20000 + os.getpid() % 10000)  # of its own: the site that a killed run left must not join
TESTS = HERE.parent
PLUGINS = {  # which backend is installed where: a GPU that Triton interprets, and an NPU that is emulated
    "a": [TESTS / "cuda/interpreter", TESTS / "cuda/interpreter_plugin"],
    "b": [
        TESTS / "backends/trivet_ascend/emulated",
        TESTS / "backends/trivet_ascend/emulated_plugin",
    ],
}
CLOCKS = {"a": [], "b": [HERE / "clock_ahead"]}
NOTICES_SOON = {  # that a node is dead, which takes Ray half a minute
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
}
RESOURCES = {  # what an operator says of each host; Ray finds no device of these itself
    "a": ["--num-gpus=2", '--resources={"null": 2}'],
    "b": ["--num-gpus=0", '--resources={"null": 2, "NPU": 1}'],
}


class RayCluster:
    """`ray start` on every host, its head on the site's own."""

    def __init__(self, hosts: dict[str, FarHost], folder: Path) -> None:
        self._folder = folder / "ray"  # one path for all; each far host has a folder of its own there
        self._folder.mkdir()
        self.environ = {
            "TRIVET_LAUNCHER": "ray",
            "TRIVET_RAY_ADDRESS": f"{NET}.1:{RAY_PORT}",
            "PYTHONPATH": _path(*PLUGINS["a"], *PLUGINS["b"]),
        }
        # Of the interpreter of the far host's own backend: the agent there has none of it.
        (hosts["a"].home / "trivet.toml").write_text(
            '[backend.cuda-interpreted]\nenv = {TRITON_INTERPRET = "1", OMP_NUM_THREADS = "1"}\n'
        )
        self._log = (folder / "ray.log").open("ab")
        self._start_head()

    def _command(self, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--num-cpus=0",
            "--object-store-memory=80000000",
            "--disable-usage-stats",
            *arguments,
        ]

    def _start_head(self) -> None:
        head = self._command(
            "--head",
            f"--node-ip-address={NET}.1",
            f"--port={RAY_PORT}",
            "--node-name=head",
            "--num-gpus=0",
            "--include-dashboard=false",
            f"--temp-dir={self._folder}",
        )
        home = self._folder.with_name("head-of-ray")  # where no agent runs: engines go to the far hosts
        home.mkdir(exist_ok=True)
        (home / "trivet.toml").write_text("lauhcner = 'ray'\n")
        env = {**inherited_environment(), **NOTICES_SOON, "TRIVET_HOME": str(home)}
        subprocess.run(head, env=env, stdout=self._log, stderr=self._log, check=True, timeout=120)

    def join(self, host: FarHost) -> None:
        """Start Ray on a host, at first or after it had died; what is left of it there ends."""
        host.kill_by(str(self._folder))
        start = self._command(
            f"--address={NET}.1:{RAY_PORT}",
            f"--node-ip-address={host.address}",
            f"--node-name={host.name}",
            *RESOURCES[host.name],
        )
        mount = f'mount -t tmpfs tmpfs {self._folder}; exec "$@"'
        path = _path(*CLOCKS[host.name], *PLUGINS[host.name])
        host.run(["sh", "-c", mount, "sh", *start, "--block"], PYTHONPATH=path, CUDA_INTERPRETED_DEVICES="2")

    def end_agent(self, host: FarHost) -> None:
        """The agent of the host dies, and all of Ray there; its engines do not."""
        host.kill_by("trivet_supervisor.hosts.agent_process")
        host.kill_by(str(self._folder))

    def end(self, hosts: Iterable[FarHost]) -> None:
        """Ray ends everywhere, and the agents' keepers with it.

        Nodes would end by themselves within a minute of their head; a new head does not start beside them
        here, because it sees the processes of every namespace.
        """
        self._end_head()
        for host in hosts:
            host.kill_by(str(self._folder))
        wait_for("Ray has ended", lambda: not any(map(self._is_of_ray, _processes())))

    def begin_anew(self, hosts: Iterable[FarHost]) -> None:
        """A head that has forgotten all: nodes, actors and claims."""
        self._start_head()
        for host in hosts:
            self.join(host)

    def install(self, host: FarHost, version: str) -> None:
        """On the host, over the version that it has, as `pip install` would."""
        scratch = host.tmp / "__init__.py"
        scratch.write_text(Path(trivet.__file__).read_text().replace(trivet.__version__, version))
        self._beside_ray(host, ["mount", "--bind", str(scratch), trivet.__file__])

    def install_ours(self, host: FarHost) -> None:
        """Again."""
        self._beside_ray(host, ["umount", trivet.__file__])

    def _beside_ray(self, host: FarHost, command: list[str]) -> None:
        """In the mount namespace of its processes there."""
        raylet = host.pids_of("raylet/raylet")[0]
        subprocess.run(["nsenter", f"--mount=/proc/{raylet}/ns/mnt", *command], check=True, timeout=60)

    def _is_of_ray(self, process: Path) -> bool:
        return str(self._folder) in _command_of(process)

    def _end_head(self) -> None:
        """By process: `ray stop` would end what runs on the far hosts, too: they are this machine."""
        for process in _processes():
            if self._is_of_ray(process) and _is_here(process):
                try:
                    os.kill(int(process.name), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def close(self) -> None:
        self._end_head()
        self._log.close()


def _path(*folders: Path) -> str:
    known = os.environ.get("PYTHONPATH", "")  # the tier's: Triton
    return ":".join([*map(str, folders), *([known] if known else [])])


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _command_of(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _is_here(process: Path) -> bool:
    try:
        return (process / "ns" / "net").readlink() == Path("/proc/self/ns/net").readlink()
    except OSError:
        return False
