"""Another rank's process, as rank 0 sees it: started, told what to do, heard, ended."""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from trivet.errors import DeviceLost, DoesNotFit, TrivetError, WeightsError
from trivet.runners.frames import Frames
from trivet.runners.rank_order import DONE, FAILED, RankOrder
from trivet.runners.wire import flatten, restore

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0
# Errors that stay what they are: what an operator has to change, and not the device.
KEPT: Mapping[str, type[TrivetError]] = {each.__name__: each for each in (DoesNotFit, WeightsError)}


class RankProcess:
    """One of them."""

    def __init__(self, order: RankOrder) -> None:
        """Starts it; nothing of this process is forked into it but the socket."""
        self.index = order.rank.index
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", f"{__package__}.rank_process", str(theirs.fileno())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self.notices: tuple[str, ...] = ()  # of its runner, by its last answer
        self._frames = Frames(ours)
        self.tell(order.as_message())

    def tell(self, message: bytes) -> None:
        """Raises: DeviceLost where it has ended."""
        try:
            self._frames.send(message)
        except OSError as error:
            self.check()  # its own words, where it left some
            raise DeviceLost(f"{self._ending()}: {error}; see its lines in this engine's log") from error

    def check(self) -> None:
        """Raises: DeviceLost with the words of a rank that has failed."""
        if self._frames.has_message(0):
            self.take_answer()

    def take_answer(self) -> None:
        """Waits for the one to the last command. Raises: DeviceLost; an error of KEPT."""
        try:
            answer = self._frames.receive()
        except EOFError:
            raise DeviceLost(f"{self._ending()} without a word; see its lines in this engine's log") from None
        if answer.startswith(DONE):
            self.notices = restore(answer[len(DONE) :])
            return
        failure = answer.removeprefix(FAILED).decode()
        name, _, words = failure.partition(": ")
        if name in KEPT:
            raise KEPT[name](f"rank {self.index}: {words}")
        raise DeviceLost(f"rank {self.index}: {failure}")

    def has_failed(self) -> bool:
        """Whether `check` would raise; reads nothing."""
        return self._frames.has_message(0) and not self._frames.begins_with(DONE)

    def has_gone(self) -> bool:
        """Whether it has ended and left no words."""
        return self._frames.has_ended()

    def fileno(self) -> int:
        """Of its socket."""
        return self._frames.fileno()

    def _ending(self) -> str:
        try:
            return f"rank {self.index} has ended with code {self.process.wait(CLOSE_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            return f"rank {self.index} has closed its socket"

    def say_close(self) -> None:
        """It may have ended already."""
        try:
            self._frames.send(flatten(("close",)))
        except OSError:
            logger.info("rank=%d had ended before it was told to", self.index)

    def disconnect(self) -> None:
        """It ends by that at once, wherever it stands."""
        self._frames.close()

    def end(self) -> None:
        """Wait for its end, or bring it about; device memory is back when this returns."""
        try:
            self.process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("rank=%d did not end within %.0f s and is killed", self.index, CLOSE_TIMEOUT_S)
            self.process.kill()
            self.process.wait()
        self._frames.close()


def answering(ranks: Sequence[RankProcess], timeout_s: float) -> list[RankProcess]:
    """Those of which there is something to read, or that have gone; waits for the first."""
    poll, by_socket = select.poll(), {rank.fileno(): rank for rank in ranks}
    for number in by_socket:
        poll.register(number, select.POLLIN)
    return [by_socket[number] for number, _ in poll.poll(timeout_s * 1000)]
