"""This side of the process that is in Ray: started when it is needed, and again when it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec

import msgspec
import zmq

from trivet.config import Paths, inherited_environment, socket_address
from trivet.errors import Unavailable
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.over_ray.calls import Asked, Reply
from trivet_supervisor.launchers.process_table import start_time

logger = logging.getLogger(__name__)

INTERVAL_S = 3.0
RESTART_S = 2.0
MAX_FAILED = 2  # rounds in a row; then it may wait for a head that is gone
MAX_FAILED_AT_FIRST = 6  # a driver takes some seconds to join
GRACE_S = 1.0  # past the deadline of what it is asked
NEEDS_RAY = (
    "launcher 'ray' needs Ray, which is not installed: pip install 'trivet[ray]' here and on every host"
)


class BridgeProcess:
    """A thread keeps it running, and has a round of questions asked again and again. Thread-safe."""

    def __init__(
        self, paths: Paths, arguments: Callable[[], list[str]], ask_round: Callable[[], None]
    ) -> None:
        """Nothing is started yet.

        Args:
            arguments: of the process: the cluster's address and this site's key.
            ask_round: raises Unavailable where it was not answered.
        """
        self._command = [sys.executable, "-P", "-m", "trivet_supervisor.hosts.over_ray.bridge"]
        self._arguments = arguments
        self._ask_round = ask_round
        self._socket_file = paths.run / f"ray-{os.getpid()}.sock"
        self._log_file = paths.logs / "ray.log"
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self.failure = "Ray has not answered yet"  # empty while it answers

    def begin(self) -> None:
        """Returns at once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="ray", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """It ends; agents and engines stay."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(RESTART_S)
        self._socket_file.unlink(missing_ok=True)

    def ask(self, asked: Asked, timeout_s: float) -> Reply:
        """Raises: HostSilent where nobody answers; Unavailable with what is answered instead."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(socket_address(self._socket_file))
            socket.send(msgspec.msgpack.encode(asked))
            if not socket.poll(int((timeout_s + GRACE_S) * 1000)):
                raise HostSilent(self.failure or f"Ray gave no answer within {timeout_s:g} s")
            reply = msgspec.msgpack.decode(socket.recv(), type=Reply)
        if reply.failure:
            raise Unavailable(reply.failure)
        return reply

    def _keep(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._run()
            except Exception as error:  # a border: without this thread no host is found any more
                logger.exception("Ray cannot be asked")
                self.failure = f"Ray cannot be asked: {type(error).__name__}: {error}"
            self._is_closing.wait(RESTART_S)

    def _run(self) -> None:
        """One process, from its start to its end."""
        if find_spec("ray") is None:
            self.failure = NEEDS_RAY
            return
        bridge = self._start()
        num_failed, most = 0, MAX_FAILED_AT_FIRST
        try:
            while bridge.poll() is None and num_failed < most:
                try:
                    self._ask_round()
                    num_failed, most, self.failure = 0, MAX_FAILED, ""
                except Unavailable as error:
                    num_failed += 1
                    self.failure = self.failure or str(error)
                if self._is_closing.wait(INTERVAL_S):
                    return
        finally:
            if bridge.stdin is not None:
                bridge.stdin.close()  # it ends with that
            bridge.kill()
            bridge.wait()
        self.failure = f"{self._last_words() or f'exit code {bridge.returncode}'}; see {self._log_file}"
        logger.error("Ray does not answer: %s", self.failure)

    def _last_words(self) -> str:
        try:
            lines = self._log_file.read_text(errors="replace")[-4096:].splitlines()
        except OSError:
            return ""
        told = [line for line in lines if " ERROR " in line]
        return told[-1].partition(" ERROR ")[2].partition(" ")[2] if told else ""

    def _start(self) -> subprocess.Popen[bytes]:
        for left in self._socket_file.parent.glob("ray-*.sock"):  # by one that was killed
            if start_time(int(left.stem.removeprefix("ray-"))) is None:
                left.unlink(missing_ok=True)
        with self._log_file.open("wb") as log:  # of one process: what is wrong is said again
            return subprocess.Popen(
                [*self._command, *self._arguments(), socket_address(self._socket_file)],
                env=dict(inherited_environment()),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the supervisor, which still has calls to make
            )
