"""A network namespace without a route, in which the kernel counts whoever tries to reach somebody."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

DEADLINE_S = 240.0
USE_SITE = Path(__file__).with_name("use_site.py")


class AirGap:
    """Commands run in it by `run`; `serve` starts a site there, which `close` ends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._holder: subprocess.Popen[str] | None = None
        self._serve: subprocess.Popen[bytes] | None = None

    def open(self) -> bool:
        """False where this account may not."""
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() == "up\n":
            return True
        self._end_holder()
        return False

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of ours: no index, no wheels, no settings of pip."""
        plain = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {
            **plain,
            "HOME": str(self.home),
            "TRIVET_HOME": str(self.home / "t"),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        assert self._holder is not None
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *map(str, command)]

    def run(self, *command: str | Path) -> str:
        """Its output. Raises: AssertionError where it fails."""
        done = subprocess.run(
            self.inside(command),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=self.home,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def serve(self, trivet: Path) -> None:
        """Returns when it answers."""
        with (self.home / "serve.log").open("wb") as log:
            self._serve = subprocess.Popen(
                self.inside([trivet, "serve"]), env=self.environ, stdout=log, stderr=log, cwd=self.home
            )
        url_file = self.home / "t" / "run" / "url"
        end_s = time.monotonic() + DEADLINE_S
        while b"API" not in (said := (self.home / "serve.log").read_bytes()):
            assert self._serve.poll() is None, said.decode()
            assert time.monotonic() < end_s, said.decode()
            time.sleep(0.05)
        assert url_file.exists()

    def stop(self) -> int:
        """As Ctrl-C does. Returns the exit code."""
        assert self._serve is not None
        self._serve.send_signal(signal.SIGINT)
        return self._serve.wait(DEADLINE_S)

    def use_site(self, python: Path, deployment: str) -> str:
        """A user is made, chats, and opens every page of the console with all that it names."""
        return self.run(python, "-P", USE_SITE, deployment)

    def attempts(self) -> int:
        """How often anything in it, DNS included, wanted to reach an address for which there is no route."""
        return int(self.run("sh", "-c", COUNT).strip())

    def close(self) -> None:
        for process in psutil.process_iter():  # what a failed test has left
            try:
                if process.environ().get("HOME") == str(self.home):
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        if self._serve is not None:
            self._serve.wait(DEADLINE_S)
        self._end_holder()

    def _end_holder(self) -> None:
        if self._holder is not None:
            self._holder.communicate(timeout=DEADLINE_S)  # `cat` ends with its input


# The column of Ip's OutNoRoutes, by its name in the line before; and IPv6's.
COUNT = """
awk '/^Ip:/ { if (!n) { for (i = 1; i <= NF; i++) if ($i == "OutNoRoutes") n = i } else v4 = $n }
     /^Ip6OutNoRoutes/ { v6 = $2 } END { print v4 + v6 }' /proc/net/snmp /proc/net/snmp6
"""
