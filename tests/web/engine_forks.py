"""Fake engines as forks of one process that has imported what they need: each is there in milliseconds.

As a program it reads the arguments of `fake_engine.py` from its input, a JSON list a line, forks an engine
for each, and answers with its pid; it ends with its input, and all of them with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO


class ForkedEngine:
    """The part of `subprocess.Popen` that tests use, of a process that is no child of theirs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it runs; how it ended is not known here."""
        return 0 if select.select([self._pidfd], [], [], 0)[0] else None

    def wait(self, timeout: float = 20.0) -> None:
        assert select.select([self._pidfd], [], [], timeout)[0], f"engine {self.pid} does not end"

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        os.close(self._pidfd)


class EngineForks:
    """The process that forks them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, *arguments: str) -> ForkedEngine:
        print(json.dumps(arguments), file=self._pipe(self._process.stdin), flush=True)
        return ForkedEngine(int(self._pipe(self._process.stdout).readline()))

    def close(self) -> None:
        with self._process:
            self._pipe(self._process.stdin).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def main() -> None:
    import fake_engine  # beside this file

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            sys.argv[1:] = json.loads(line)
            fake_engine.main()
        print(pid, flush=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
