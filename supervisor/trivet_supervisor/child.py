"""A child process of `trivet serve` that is started again when it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trivet.engine.log_bound import LogBound
from trivet_supervisor.backoff import Backoff

logger = logging.getLogger(__name__)

STDERR = 2


class Child:
    """Supervisor or web, in a session of its own, so that Ctrl-C reaches the parent only."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log_file: Path,
        pipe: int,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.log_file = log_file
        self.num_failures = 0  # in a row
        self._command = command
        self._env = env
        self._pipe = pipe
        self._clock = clock
        # While the supervisor is away no engine is started again: it is not away for long.
        self._backoff = Backoff(stable_s=30.0, longest_s=10.0)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._retry_s: float | None = None

    def start(self) -> None:
        """Raises: OSError, also where its log cannot be opened."""
        self._spawn(self._open_log())

    def _open_log(self) -> int:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _open_some_log(self) -> int:
        """Its own, or this process's: to be without a supervisor is worse than to have no file."""
        try:
            return self._open_log()
        except OSError as error:
            logger.error(
                "%s cannot write its log (%s) and writes here until it is started again", self.name, error
            )
            return os.dup(STDERR)

    def _spawn(self, log: int) -> None:
        try:
            self._process = subprocess.Popen(
                list(self._command),
                env=dict(self._env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[self._pipe],
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._started_s = self._clock()
        self._retry_s = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive() else None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def bound_log(self) -> None:
        """Its workers hold its log open, so it is cut in place; the earlier part stands beside it."""
        with suppress(OSError), self.log_file.open("ab") as log:
            LogBound(log.fileno()).enforce()

    def keep(self) -> int | None:
        """Start it again when it is due. Its exit code, once, where it has just died."""
        if self._process is None or self._process.poll() is None:
            return None
        now = self._clock()
        if self._retry_s is None:
            stable = now - self._started_s > self._backoff.stable_s
            self.num_failures = 1 if stable else self.num_failures + 1
            self._retry_s = now + self._backoff.delay_s(self.num_failures)
            return self._process.returncode
        if now >= self._retry_s:
            try:
                self._spawn(self._open_some_log())
            except OSError as error:  # no memory: engines must not end for that
                self.num_failures += 1
                self._retry_s = now + self._backoff.delay_s(self.num_failures)
                logger.error("%s cannot be started: %s; it is tried again", self.name, error)
        return None

    def wait(self, timeout_s: float) -> bool:
        """True if it has ended by then."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL for it and its workers; it is gone when this returns."""
        if self._process is None:
            return
        if self.is_alive():
            self._process.terminate()
        if not self.wait(timeout_s):
            logger.warning("%s did not end within %s s: killed", self.name, timeout_s)
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL for it and its workers."""
        if self._process is not None and self.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads its session: pid is the group
