"""Starting and ending the processes of engines: own session, log in a file, nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 60.0


class EngineFailed(RuntimeError):
    """An engine did not start, died, or did not answer in time."""


class Child:
    """One process, and whatever it starts in its session."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._buffer = b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **env},
                start_new_session=True,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def peak_rss_bytes(self) -> int:
        """Largest resident sizes of the process and of all that it started, added up."""
        total = 0
        for process in (psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
            total += int(peak[0]) * 1024 if peak else 0  # a zombie has none
        return total

    def check_alive(self) -> None:
        """Raises: EngineFailed with the log's last line."""
        code = self._process.poll()
        if code is not None:
            raise self.failed(f"ended with exit code {code}")

    def failed(self, what: str) -> EngineFailed:
        """The error, with the last line that the process wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        return EngineFailed(f"{self.name} {what}{last} (see {self.log})")

    def write_line(self, line: str) -> None:
        """Raises: EngineFailed where nobody reads it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            self._process.wait(STOP_TIMEOUT_S)
            raise self.failed(f"ended with exit code {self._process.returncode}") from None

    def read_line(self, timeout_s: float) -> str:
        """The next line of its standard output. Raises: EngineFailed."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise self.failed(f"did not answer in {timeout_s:.0f} s")
            data = self._process.stdout.read(1 << 16)
            if not data:
                self._process.wait(STOP_TIMEOUT_S)
                raise self.failed(f"ended with exit code {self._process.returncode}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End the process, at first kindly, then its whole session."""
        if self._process.poll() is None:
            self._process.send_signal(with_signal)
            with suppress(subprocess.TimeoutExpired):  # the session is killed next
                self._process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
