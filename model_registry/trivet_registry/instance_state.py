"""The states of an instance and the one table of legal moves.

    pending -> placing -> starting -> loading -> warming -> ready
                                                              |
    stopped <- stopping <- draining <-------------------------+

`failed` (it ended by itself, or could not start) and `lost` (it fell silent or passed a deadline, and is
being killed) are reached from every state with a process but `stopping`; `failed` leads back to `pending`
when the supervisor tries again. Moves may skip `loading` and `warming`: heart-beats travel by PUB/SUB, and
one may be missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from trivet.errors import Conflict


class InstanceState(StrEnum):
    """What the supervisor knows about one instance."""

    PENDING = "pending"  # wanted, waiting for its turn, for room or for the next attempt
    PLACING = "placing"  # a backend and devices are being chosen
    STARTING = "starting"  # its process was started and has not spoken
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"  # it generated a token through its whole loop
    DRAINING = "draining"  # no new requests; running ones finish
    STOPPING = "stopping"  # told to end; its process may still exist
    STOPPED = "stopped"  # its process is gone
    FAILED = "failed"
    LOST = "lost"  # given up by the supervisor; its process may still exist


_S = InstanceState
_ENDS = frozenset({_S.STOPPING, _S.FAILED, _S.LOST})

LEGAL_MOVES: Mapping[InstanceState, frozenset[InstanceState]] = {
    _S.PENDING: frozenset({_S.PLACING, _S.STOPPED, _S.FAILED}),
    _S.PLACING: frozenset({_S.PENDING, _S.STARTING, _S.STOPPED, _S.FAILED}),
    _S.STARTING: _ENDS | {_S.LOADING, _S.WARMING, _S.READY},
    _S.LOADING: _ENDS | {_S.WARMING, _S.READY},
    _S.WARMING: _ENDS | {_S.READY},
    _S.READY: _ENDS | {_S.DRAINING},
    _S.DRAINING: _ENDS | {_S.STOPPED},
    _S.STOPPING: frozenset({_S.STOPPED}),
    _S.STOPPED: frozenset(),
    _S.FAILED: frozenset({_S.PENDING, _S.STOPPED}),
    _S.LOST: frozenset({_S.FAILED, _S.STOPPED}),
}

# A process may exist in these; in all others it is known to be gone.
PROCESS_STATES = frozenset({_S.STARTING, _S.LOADING, _S.WARMING, _S.READY, _S.DRAINING, _S.STOPPING, _S.LOST})
# Of those, they have taken the memory of their plan: a probe does not count it as free any more.
ALLOCATED_STATES = frozenset({_S.READY, _S.DRAINING, _S.STOPPING})
# Everything that has not come to its end; `failed` stays visible until its deployment is stopped.
LIVE_STATES = frozenset(_S) - {_S.STOPPED}


class IllegalMove(Conflict):
    """An instance was to be moved along no legal way, or it is in another state by now."""


def check_move(old: InstanceState, new: InstanceState) -> None:
    """Raises: IllegalMove naming both states and the legal ones."""
    if new not in LEGAL_MOVES[old]:
        legal = ", ".join(sorted(LEGAL_MOVES[old])) or "nothing: it is final"
        raise IllegalMove(f"an instance cannot move from {old} to {new}; from {old} it can move to {legal}")
