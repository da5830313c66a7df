"""What a launcher and the agent of another host say to each other: msgspec structs in MessagePack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from trivet.contract import DeviceInfo
from trivet.endpoints import Endpoints
from trivet.errors import Unavailable
from trivet.messages import LaunchOrder


class HostSilent(Unavailable):
    """A host gave no answer in time, or is not there."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start an engine; answered by `Started` or `Refused`."""

    launch: LaunchOrder  # the agent writes in where it runs and listens


class Followed(msgspec.Struct, frozen=True):
    """One engine, as the asker knows it."""

    lease: str
    log_offset: int = 0  # bytes of its log that have come


class Look(msgspec.Struct, frozen=True, tag=True):
    """Send signals, then tell of these engines; answered by `Seen`."""

    followed: list[Followed]
    terminate: list[str] = []  # leases
    kill: list[str] = []


class Find(msgspec.Struct, frozen=True, tag=True):
    """Whether an engine with this lease lives there; answered by `Started` or `Gone`."""

    lease: str


class ListOrders(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Orders`."""


class Discard(msgspec.Struct, frozen=True, tag=True):
    """Remove the order and the log of an engine that is gone; answered by `Orders`, with none."""

    instance_id: str
    lease: str


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Which devices a backend has there; answered by `Devices`."""

    backend: str
    timeout_s: float


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Agent`."""


Call = Start | Look | Find | ListOrders | Discard | Probe | Hello


class Started(msgspec.Struct, frozen=True, tag=True):
    """The process and when it started, by its host's kernel."""

    pid: int
    start_time: float


class Gone(msgspec.Struct, frozen=True, tag=True):
    """No engine with this lease lives there."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why not."""

    reason: str


class EngineSeen(msgspec.Struct, frozen=True):
    """How an engine is now."""

    exit_code: int | None  # None: it lives
    processes: list[tuple[int, float]]  # pid and start time of it and its ranks
    endpoints: Endpoints | None
    log: bytes  # what it has printed since `log_offset`, or a part of that
    log_offset: int  # to ask with the next time
    has_more_log: bool


class Seen(msgspec.Struct, frozen=True, tag=True):
    """By lease."""

    engines: dict[str, EngineSeen]


class Orders(msgspec.Struct, frozen=True, tag=True):
    """What was started there and not discarded."""

    orders: list[LaunchOrder]


class Devices(msgspec.Struct, frozen=True, tag=True):
    """As that host names them."""

    devices: list[DeviceInfo]


class Agent(msgspec.Struct, frozen=True, tag=True):
    """Which Trivet answers there."""

    version: str


Answer = Started | Gone | Refused | Seen | Orders | Devices | Agent

_calls = msgspec.msgpack.Decoder(Call)
_answers = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.encode


def decode_call(message: bytes) -> Call:
    """Raises: msgspec.DecodeError for one of another version."""
    return _calls.decode(message)


def decode_answer(message: bytes) -> Answer:
    """Raises: msgspec.DecodeError for one of another version."""
    return _answers.decode(message)


class Hosts(Protocol):
    """The hosts of a site, and the way to their agents. Thread-safe.

    A message has all power over engines, so the way has to prove both sides to each other and to be closed to
    others: whoever reaches an agent can start processes there.
    """

    def names(self) -> Mapping[str, str]:
        """Those that are there now, each with its address. Returns at once, and never raises."""

    def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
        """Ask the agent of a host. Raises: HostSilent, within `timeout_s`."""
