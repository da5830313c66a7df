"""One engine as the relay thread sees it: a DEALER, its monitor, the open requests, the last beat.

Everything here is called from the relay thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from trivet.endpoints import Endpoints, connect
from trivet.errors import EngineLost, TrivetError
from trivet.messages import (
    SILENCE_LIMIT_S,
    STALL_SILENCE_S,
    Abort,
    Beat,
    EngineLoad,
    Look,
    Phase,
    Piece,
    ResetPrefixCache,
    StepReport,
    Submit,
)
from trivet_web.engines.mailbox import Mailbox

CONNECT_LIMIT_S = 1.0  # an ipc connection takes under a millisecond, or is refused at once
CONNECT_LIMIT_TCP_S = 4.0  # a lost first packet is sent again after 1 s, and then after 2 (RFC 6298)
MAX_MESSAGES = 64  # a turn: a flood from one engine starves neither the others nor the commands
PIECES_AT_ONCE = 32  # of a step, until who reads them has its turn: their requests are in the cache then

_encoder = msgspec.msgpack.Encoder()
_reports = msgspec.msgpack.Decoder(StepReport)


@dataclass(frozen=True, slots=True)
class Recipient:
    """Where the pieces of one sequence go."""

    mailbox: Mailbox
    choice: int


class Connection(Enum):
    """The DEALER's state. After LOST the link is thrown away; the next submit makes a new one."""

    OPENING = auto()
    OPEN = auto()
    LOST = auto()


class EngineLink:
    """A connection to one engine process."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        instance_id: str,
        endpoints: Endpoints,
        key_file: Path,
        now: float,
        serve_some: Callable[[float], None] = lambda now: None,
    ):
        """Raises: ConfigError where the site's keys are wanted and cannot be read; zmq.ZMQError."""
        self._serve_some = serve_some
        self.instance_id = instance_id
        self.endpoints = endpoints
        self.connection = Connection.OPENING
        self.load = EngineLoad()
        self._opened_s = now
        self._open: dict[str, Recipient] = {}
        self._waiting: list[bytes] = []  # encoded, until the connection stands
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvhwm = 0  # a dropped report would hang a request; mailboxes are the bound
        self.socket.sndhwm = 0
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
        )
        self.monitor.linger = 0
        connect(self.socket, endpoints.sock, endpoints.server_key, key_file)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)

    @property
    def _may_be_far(self) -> bool:
        return bool(self.endpoints.server_key)

    def submit(self, request: Submit | ResetPrefixCache | Look, recipient: Recipient) -> None:
        self._open[request.request_id] = recipient
        if self._may_be_far and isinstance(request, Submit):
            request = msgspec.structs.replace(request, sent_s=time.monotonic())
        self._send(_encoder.encode(request))

    def abort(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._send(_encoder.encode(Abort(request_id)))

    @property
    def num_open(self) -> int:
        return len(self._open)

    def fail_all(self, error: TrivetError, *, is_final: bool = False) -> None:
        """End every open request; the engine, should it still live, is told to drop them.

        Args:
            is_final: no other replica is asked either.
        """
        lost, self._open = self._open, {}
        for request_id, recipient in lost.items():
            recipient.mailbox.fail(error, None if is_final else recipient.choice)
            if self.connection is Connection.OPEN:
                self._send(_encoder.encode(Abort(request_id)))

    def on_monitor(self) -> None:
        """Take connection events. A refused connection and an ended one both mean: no such engine.

        LOST is final. The engine's next attempt has the same address, and the DEALER would connect to it by
        itself; but that process knows nothing of the requests that are open here.
        """
        for frames in _drain(self.monitor):
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_CONNECTED:
                self.connection = Connection.OPEN
                for message in self._waiting:
                    self.socket.send(message)
                self._waiting.clear()
            else:
                self.connection = Connection.LOST
                return

    def has_timed_out(self, now: float) -> bool:
        limit_s = CONNECT_LIMIT_TCP_S if self._may_be_far else CONNECT_LIMIT_S
        return self.connection is Connection.OPENING and now - self._opened_s > limit_s

    def on_reports(self, now: float) -> bool:
        """Hand out the pieces of at most `MAX_MESSAGES` steps. True if there were any.

        Raises: msgspec.MsgspecError for a report of another version of Trivet.
        """
        seen = False
        for frames in _drain(self.socket):
            report = _reports.decode(frames[-1])
            self.load = report.load
            seen = True
            # Behind it a backlog waits: then each reader has one turn for all of it, which costs it less.
            is_last = not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
            for start in range(0, len(report.pieces), PIECES_AT_ONCE):
                self._deliver(report.pieces[start : start + PIECES_AT_ONCE], now)
                if is_last:
                    self._serve_some(now)
        return seen

    def _deliver(self, pieces: list[Piece], now: float) -> None:
        for piece in pieces:
            recipient = self._open.get(piece.request_id)
            if recipient is None:  # aborted meanwhile
                continue
            if piece.finish_reason is not None or piece.failure is not None:
                del self._open[piece.request_id]
            if not recipient.mailbox.put(recipient.choice, piece, now):
                recipient.mailbox.fail(ReaderTooSlow(), recipient.choice)
                self.abort(piece.request_id)

    def _send(self, message: bytes) -> None:
        if self.connection is Connection.OPEN:
            self.socket.send(message)
        else:
            self._waiting.append(message)


class ReaderTooSlow(TrivetError):
    """The client takes its answer more slowly than the bound of its mailbox allows."""

    status, code = 408, "client_too_slow"

    def __init__(self) -> None:
        super().__init__("the client has stopped reading the stream; read it as it comes")


@dataclass(slots=True)
class EngineView:
    """What this process knows of an engine. Times are CLOCK_MONOTONIC seconds."""

    instance_id: str
    last_seen_s: float
    lost_because: str | None = None
    lost_at_s: float = 0.0
    beat: Beat | None = None
    load: EngineLoad = field(default_factory=EngineLoad)

    def on_beat(self, beat: Beat, now: float) -> None:
        """A beat read just after its process ended was sent before; it brings nobody back."""
        was_lost = self.lost_because is not None
        is_late = self.beat is not None and beat.pid == self.beat.pid and now - self.lost_at_s < 1.0
        if was_lost and is_late:
            return
        self.beat, self.load, self.last_seen_s, self.lost_because = beat.on_clock(now), beat.load, now, None

    def lose(self, reason: str, now: float) -> EngineLost:
        self.lost_because, self.lost_at_s = reason, now
        return EngineLost(f"instance {self.instance_id} {reason} while it held the request; send it again")

    def is_silent(self, now: float) -> bool:
        """Past the limit, and past what the engine said its step may take."""
        deadline = (self.beat.step_deadline_s if self.beat else None) or 0.0
        return now > max(self.last_seen_s, deadline) + SILENCE_LIMIT_S

    def is_stalled(self, now: float) -> bool:
        """Not lost, but no place to wait. Over as soon as the engine moves, as its next beat says."""
        return bool(self.why_stalled(now))

    def why_stalled(self, now: float) -> str:
        """Silent, or in a step that takes far longer than those before; empty where it moves."""
        if self.beat is None:  # never seen: the registry's word counts
            return ""
        if now > self.last_seen_s + STALL_SILENCE_S:
            return f"stalled: silent for {now - self.last_seen_s:.0f} s"
        due_s, started_s = self.beat.step_due_s, self.beat.step_started_s
        if due_s is None or started_s is None or now <= due_s:
            return ""
        return f"stalled: its step has run for {now - started_s:.0f} s"

    @property
    def can_serve(self) -> bool:
        """Unknown counts as yes: the registry said READY and nothing has denied it yet."""
        return self.lost_because is None and (self.beat is None or self.beat.phase is Phase.READY)

    @property
    def why_not(self) -> str:
        if self.lost_because is not None:
            return self.lost_because
        if self.beat is None or self.can_serve:
            return ""
        reason = f": {self.beat.reason}" if self.beat.reason else ""
        return f"is {self.beat.phase}{reason}"


def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    for _ in range(MAX_MESSAGES):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
