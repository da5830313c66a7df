"""Which instances of a deployment shall end and how many shall be made: a pure function of what is there.

A launch has one generation, and each update makes another. While the instances of the newest come up, those
of the generations before them go on serving; each newer one that is ready takes the place of one of them.
One more than asked for runs meanwhile, where the devices have room for it; where they have not, one of
the older makes room first, if that is what it takes.

Until one of the newest is ready, the generation that served last keeps all its instances, also those that
have crashed and come up again; what is missing of it is made anew once the newest have failed, or wait for
room that older ones do not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trivet_registry.instance_state import PROCESS_STATES, InstanceState
from trivet_registry.tables import Instance

SURGE = 1  # instances beyond `replicas` during an update
NOT_WANTED = "is not wanted any more"
REPLACED = "is replaced by a newer instance"
MAKES_ROOM = "makes room for a newer instance, which found none beside it"

S = InstanceState
_ENDING = (S.DRAINING, S.STOPPING)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a turn does to one deployment."""

    ended: Sequence[tuple[Instance, str]]  # each with the reason
    num_new: int  # of the newest generation
    num_served: int  # of the generation that served last


def changes_of(
    instances: Sequence[Instance],
    *,
    generation: int,
    first_generation: int,
    served_generation: int | None,
    num_wanted: int,
    helped_by_room: Collection[str],
    finds_no_room: Collection[str],
) -> Changes:
    """What to do with `instances`, which live and are of any generation.

    Args:
        served_generation: the last of which an instance has been ready; None: none has.
        helped_by_room: ids of those that wait for room, and would have it if the older ones were gone.
        finds_no_room: ids of those that wait for room, and would not have it even then.
    """
    staying = [i for i in instances if i.instance_state not in _ENDING]
    newest = [i for i in staying if i.generation == generation]
    num_ready = sum(i.instance_state is S.READY for i in newest)
    resort = served_generation if num_ready == 0 else None

    def serves_on(instance: Instance) -> bool:
        is_older = first_generation <= instance.generation < generation
        return is_older and (instance.instance_state is S.READY or instance.generation == resort)

    older = sorted(filter(serves_on, staying), key=worth)
    replaced = older[max(0, num_wanted - num_ready) :]
    is_stuck = any(i.id in helped_by_room for i in newest) and len(staying) == len(instances)
    making_room = [i for i in older if i.instance_state in PROCESS_STATES][-1:]
    if not is_stuck or replaced:
        making_room = []
    num_kept = len(older) - len(replaced) - len(making_room)
    num_served = 0
    # While the newest come up there may be no room beside them: what made it must not take it back.
    have_no_way = newest and all(i.instance_state is S.FAILED or i.id in finds_no_room for i in newest)
    if have_no_way and resort is not None and first_generation <= resort < generation:
        num_served = num_wanted - num_kept
    num_older = num_kept + num_served
    is_update = bool(older) or num_served > 0
    num_newest = min(num_wanted, max(1, num_wanted + SURGE - num_older)) if is_update else num_wanted
    kept = sorted(newest, key=worth)[:num_newest]
    known = {i.id for i in (*older, *kept)}
    ended = [(i, NOT_WANTED) for i in staying if i.id not in known]
    ended += [(i, REPLACED if num_wanted else NOT_WANTED) for i in replaced]
    ended += [(i, MAKES_ROOM) for i in making_room]
    return Changes(ended, max(0, num_newest - len(newest)), num_served)


def worth(instance: Instance) -> tuple[int, float]:
    """Sorts what is kept first: ready ones, then what comes up, the failed last; the oldest first."""
    rank = {S.READY: 0, S.FAILED: 2}.get(instance.instance_state, 1)
    return rank, instance.created_at.timestamp()
