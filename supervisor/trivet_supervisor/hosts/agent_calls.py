"""What a launcher and the agent of another host say to each other: msgspec structs in MessagePack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from trivet.contract import DeviceInfo
from trivet.endpoints import Endpoints
from trivet.errors import Unavailable
from trivet.launching import ModelFile
from trivet.messages import LaunchOrder
from trivet.optional_contract import DeviceUsage


class HostSilent(Unavailable):
    """A host gave no answer in time, or is not there."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start an engine; answered by `Started` or `Refused`."""

    launch: LaunchOrder  # the agent writes in where it runs and listens
    model_files: list[ModelFile] = []  # as they have to be there
    expires_s: float | None = None  # of the agent's clock (`Agent.clock_s`): later nobody waits for it


class LogPosition(msgspec.Struct, frozen=True):
    """A place in a log that is cut from time to time (`log_bound`)."""

    cut_ns: int = 0  # when the part before was cut off; 0: never yet
    offset: int = 0  # bytes of the part since


class Followed(msgspec.Struct, frozen=True):
    """One engine, as the asker knows it."""

    lease: str
    log: LogPosition = LogPosition()  # up to where it has come


class Look(msgspec.Struct, frozen=True, tag=True):
    """Send signals, then tell of these engines; answered by `Seen`."""

    followed: list[Followed]
    terminate: list[str] = []  # leases
    kill: list[str] = []


class Find(msgspec.Struct, frozen=True, tag=True):
    """Whether an engine with this lease lives there; answered by `Started`, `Gone` or `Untold`."""

    lease: str


class ListOrders(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Orders`."""


class Discard(msgspec.Struct, frozen=True, tag=True):
    """Remove the order and the log of an engine; answered by `Orders`, with none.

    Refused while a process of it lives: without its order nobody would find that.
    """

    instance_id: str
    lease: str


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Which devices a backend has there; answered by `Devices`."""

    backend: str
    timeout_s: float


class AskUsage(msgspec.Struct, frozen=True, tag=True):
    """How busy the devices of a backend are there, and with whose processes; answered by `Usage`."""

    backend: str
    timeout_s: float


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Answered by `Agent`."""


Call = Start | Look | Find | ListOrders | Discard | Probe | AskUsage | Hello


class Started(msgspec.Struct, frozen=True, tag=True):
    """The process and when it started, by its host's kernel."""

    pid: int
    start_time: float


class Gone(msgspec.Struct, frozen=True, tag=True):
    """No engine with this lease lives there."""


class Untold(msgspec.Struct, frozen=True, tag=True):
    """It cannot be told there whether it lives: why not."""

    reason: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why not."""

    reason: str


class EngineSeen(msgspec.Struct, frozen=True):
    """How an engine is now."""

    exit_code: int | None  # None: it lives, or nobody can tell
    processes: list[tuple[int, float]]  # pid and start time of it and its ranks
    endpoints: Endpoints | None
    log: bytes  # what it has printed since, or a part of that
    position: LogPosition  # behind it, to ask with the next time
    has_more_log: bool
    untold: str = ""  # why nobody can tell whether it lives


class Seen(msgspec.Struct, frozen=True, tag=True):
    """By lease."""

    engines: dict[str, EngineSeen]


class Orders(msgspec.Struct, frozen=True, tag=True):
    """What was started there and not discarded."""

    orders: list[LaunchOrder]


class Devices(msgspec.Struct, frozen=True, tag=True):
    """As that host names them."""

    devices: list[DeviceInfo]


class Usage(msgspec.Struct, frozen=True, tag=True):
    """By uid, as that host names its devices; users carry their names."""

    usage: dict[str, DeviceUsage]


class Agent(msgspec.Struct, frozen=True, tag=True):
    """Which Trivet answers there, and its CLOCK_MONOTONIC."""

    version: str
    clock_s: float = 0.0


Answer = Started | Gone | Untold | Refused | Seen | Orders | Devices | Usage | Agent

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

    def trouble(self) -> str:
        """Why there may be hosts that are not known; empty where nothing is wrong. Returns at once."""

    def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
        """Ask the agent of a host. Raises: HostSilent, within `timeout_s`."""


class Claims(Protocol):
    """Tells a scheduler that others use, too, which devices of which hosts engines hold. Thread-safe."""

    def take(self, host: str, launch: LaunchOrder) -> None:
        """Before an engine is started. Raises: Unavailable where others have what it needs."""

    def taken(self, lease: str) -> None:
        """The start of what `take` was called for was answered, or was not answered in time."""

    def settle(self, host: str, orders: Sequence[LaunchOrder], asked_s: float) -> None:
        """These are all that a host has, or has had and nobody has said is gone.

        What it holds for others is given back, but for those whose start came later than `asked_s`
        (CLOCK_MONOTONIC); what is missing is taken. Returns at once.
        """
