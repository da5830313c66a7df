"""The engine's data socket: requests in, one report per web worker and step out.

A ROUTER in mandatory mode: a web worker that has gone, or that has let `MAX_UNREAD` reports pile up,
shows as a failed send, and its sequences are aborted instead of generating for nobody.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import zmq

from trivet.engine.commit import Update, failure_of
from trivet.engine.doors import Doors
from trivet.errors import TrivetError, Unavailable
from trivet.messages import (
    Abort,
    EngineLoad,
    EngineRequest,
    FinishReason,
    Piece,
    StepReport,
)

logger = logging.getLogger(__name__)

MAX_UNREAD = 20_000  # reports; 3 minutes of a 10 ms step
MAX_DRAINED = 64  # requests taken a turn, so that a flood cannot hold up the step


class Unreadable(NamedTuple):
    """A message that waits for an answer, in a form that this version does not read."""

    request_id: str
    error: Unavailable  # the web side asks another replica, which may read it


class Mailbox:
    """Knows which client waits for which sequence.

    A client chooses its request ids; two clients may choose the same, so sequences are named by both.
    """

    def __init__(self, doors: Doors, wake_fd: int) -> None:
        """Nobody reaches it before `open`."""
        self._wake_fd = wake_fd
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.router_mandatory = True
        self._socket.sndhwm = MAX_UNREAD
        self._socket.rcvhwm = 0
        self._socket.linger = 1000
        self._doors = doors
        self._is_open = False
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(wake_fd, zmq.POLLIN)
        self._open: dict[str, tuple[bytes, str]] = {}
        self._decoder: msgspec.msgpack.Decoder[EngineRequest] = msgspec.msgpack.Decoder(EngineRequest)
        self._encoder = msgspec.msgpack.Encoder()

    def open(self) -> None:
        """Bind the socket; idempotent. Raises: Unavailable."""
        if not self._is_open:
            self._doors.open(self._socket, "sock")
            self._is_open = True

    def drain(self, wait_s: float | None) -> Iterator[tuple[bytes, EngineRequest | Unreadable]]:
        """Requests that have come; waits for one, or for the wake-up, at most `wait_s` (None: for ever).

        A wake-up that comes between steps stays, and ends the next wait at once.
        """
        if wait_s != 0:
            events = dict(self._poller.poll(None if wait_s is None else int(wait_s * 1000)))
            if self._wake_fd in events:
                os.eventfd_read(self._wake_fd)
        for _ in range(MAX_DRAINED):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if (request := self._decode(frames[0], frames[-1])) is not None:
                yield frames[0], request

    def _decode(self, client: bytes, message: bytes) -> EngineRequest | Unreadable | None:
        """None: nobody can be told, or nobody waits."""
        try:
            return self._decoder.decode(message)
        except (msgspec.DecodeError, RecursionError) as error:
            request_id = _id_in(message)
            logger.warning(
                "client=%s request_id=%s sent what is no request: %s", client.hex(), request_id, error
            )
            if request_id is None:
                return None
            reason = f"the engine cannot read the request: {error}; start it again with the server's version"
            return Unreadable(request_id, Unavailable(reason))

    def keep_bound(self) -> None:
        """Bind again where somebody has deleted the socket's file."""
        try:
            self._doors.keep_open(self._socket, "sock")
        except zmq.ZMQError as error:
            logger.error("the socket cannot be bound again: %s", error)

    # ---- who waits for what ----

    def sequence_id(self, client: bytes, request_id: str) -> str:
        return f"{client.hex()}/{request_id}"

    def remember(self, client: bytes, request_id: str) -> None:
        self._open[self.sequence_id(client, request_id)] = (client, request_id)

    def forget(self, client: bytes, request_id: str) -> str | None:
        """The sequence that the client waited for, if any."""
        sequence_id = self.sequence_id(client, request_id)
        return sequence_id if self._open.pop(sequence_id, None) else None

    def forget_client(self, client: bytes) -> list[str]:
        """The sequences that the client waited for."""
        mine = [sequence_id for sequence_id, (owner, _) in self._open.items() if owner == client]
        for sequence_id in mine:
            del self._open[sequence_id]
        return mine

    # ---- out ----

    def send(self, updates: Iterable[Update], load: EngineLoad) -> list[bytes]:
        """One report per client. Returns the clients that cannot be reached."""
        by_client: dict[bytes, list[Piece]] = defaultdict(list)
        for update in updates:
            owner = self._open.get(update.sequence.request_id)
            if owner is None:
                continue
            client, request_id = owner
            by_client[client].append(_piece(request_id, update))
            if update.finish_reason is not None:
                del self._open[update.sequence.request_id]
        return [
            client for client, pieces in by_client.items() if not self._post(client, StepReport(pieces, load))
        ]

    def answer(self, client: bytes, piece: Piece, load: EngineLoad) -> None:
        """The one piece that answers `ResetPrefixCache` or `Look`."""
        self._post(client, StepReport([piece], load))

    def refuse(self, client: bytes, request_id: str, error: TrivetError, load: EngineLoad) -> None:
        """Answer a request that was never admitted."""
        self._post(client, StepReport([_failed(request_id, error)], load))

    def refuse_open(self, sequence_id: str, error: TrivetError, load: EngineLoad) -> None:
        """Answer a request that was remembered and never admitted."""
        owner = self._open.pop(sequence_id, None)
        if owner is not None:
            self.refuse(*owner, error, load)

    def fail_all(self, error: TrivetError, load: EngineLoad) -> None:
        """End every open request with the error."""
        by_client: dict[bytes, list[Piece]] = defaultdict(list)
        for client, request_id in self._open.values():
            by_client[client].append(_failed(request_id, error))
        self._open.clear()
        for client, pieces in by_client.items():
            self._post(client, StepReport(pieces, load))

    def close(self) -> None:
        self._socket.close()

    def _post(self, client: bytes, report: StepReport) -> bool:
        try:
            self._socket.send_multipart([client, self._encoder.encode(report)], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True


def _id_in(message: bytes) -> str | None:
    """Of any message but an `Abort`: the name of its kind and a request id come first, whatever follows."""
    try:
        kind, request_id, *_ = msgspec.msgpack.decode(message, type=list[msgspec.Raw])
        is_answered = msgspec.msgpack.decode(kind, type=str) != Abort.__name__
        return msgspec.msgpack.decode(request_id, type=str) if is_answered else None
    except (ValueError, RecursionError):  # msgspec's errors, and too few parts
        return None


def _failed(request_id: str, error: TrivetError) -> Piece:
    return Piece(
        request_id,
        "",
        [],
        FinishReason.ERROR,
        failure=failure_of(error),
    )


def _piece(request_id: str, update: Update) -> Piece:
    sequence = update.sequence
    return Piece(
        request_id,
        update.text,
        update.token_ids,
        update.finish_reason,
        update.stop_reason,
        prompt_tokens=sequence.num_prompt_tokens,
        cached_tokens=sequence.num_cached_tokens,
        completion_tokens=sequence.num_output_tokens,
        logprobs=update.logprobs,
        failure=update.failure,
        prompt_logprobs=update.prompt_logprobs,
        embedding=None if update.embedding is None else update.embedding.astype("<f4").tobytes(),
        queue_s=_queue_s(update),
    )


def _queue_s(update: Update) -> float | None:
    sequence = update.sequence
    is_first = sequence.num_output_tokens <= len(update.token_ids)
    if not is_first or sequence.first_scheduled_s is None:
        return None
    return sequence.first_scheduled_s - sequence.arrival_s
