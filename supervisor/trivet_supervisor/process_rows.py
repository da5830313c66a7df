"""Processes of engines as the registry keeps them, and as sentences name them."""

from __future__ import annotations

from typing import Any

from trivet.launching import EngineHandle, ProcessIdentity


def identified(identity: ProcessIdentity) -> dict[str, Any]:
    """As the registry keeps it."""
    return {
        "pid": identity.pid,
        "process_start_time": identity.start_time,
        "host": identity.host or None,
    }


def named(identity: ProcessIdentity) -> str:
    """For a sentence."""
    return f"pid {identity.pid} on {identity.host}" if identity.host else f"pid {identity.pid}"


def processes_of(handle: EngineHandle) -> list[dict[str, float]]:
    """As the registry keeps them."""
    return [{"pid": each.pid, "start_time": each.start_time} for each in handle.processes()]
