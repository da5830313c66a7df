"""What is said over run/supervisor.sock, as msgspec structs in MessagePack."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Wake(msgspec.Struct, frozen=True, tag=True):
    """The registry's desired state has changed. Answered with the status."""


class GetStatus(msgspec.Struct, frozen=True, tag=True):
    """Answered with the status."""


class ShutDown(msgspec.Struct, frozen=True, tag=True):
    """Drain and stop every engine, then exit 0. Deployments stay wanted: the next serve runs them again.

    A second one with a shorter timeout replaces the first. Answered with the status.
    """

    drain_timeout_s: float


Request: TypeAlias = Wake | GetStatus | ShutDown


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A living supervisor."""

    pid: int
    version: str
    as_of: float  # seconds since the epoch
    num_followed: int  # engine processes
    is_shutting_down: bool = False
    problem: str = ""  # why its last turn failed, which is tried again
