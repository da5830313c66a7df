"""Which instances end and how many are made, for a launch, a scaling and an update."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Instance
from trivet_supervisor.rollout import Changes, changes_of

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def fleet(*described: str) -> list[Instance]:
    """ "1 ready" is one of generation 1; ids are their places, the first is the oldest."""
    made = []
    for number, words in enumerate(described):
        generation, state = words.split()
        made.append(
            Instance(
                id=str(number),
                generation=int(generation),
                state=InstanceState(state),
                created_at=BEGAN + timedelta(seconds=number),
            )
        )
    return made


def changes(
    *described: str,
    wanted: int,
    generation: int = 2,
    first: int = 1,
    served: int | None = 1,
    helped_by_room: tuple[str, ...] = (),
    finds_no_room: tuple[str, ...] = (),
) -> Changes:
    return changes_of(
        fleet(*described),
        generation=generation,
        first_generation=first,
        served_generation=served,
        num_wanted=wanted,
        helped_by_room=helped_by_room,
        finds_no_room=finds_no_room,
    )


def ended(found: Changes) -> list[str]:
    return sorted(instance.id for instance, _ in found.ended)


def test_what_is_missing_is_made_and_what_is_too_much_ends() -> None:
    assert changes("2 ready", wanted=3).num_new == 2
    found = changes("2 loading", "2 ready", wanted=1)
    assert (ended(found), found.num_new) == (["0"], 0), "the one that serves stays"


def test_an_update_brings_up_one_more_before_anything_ends() -> None:
    found = changes("1 ready", "1 ready", wanted=2)
    assert (ended(found), found.num_new) == ([], 1)
    found = changes("1 ready", "1 ready", "2 warming", wanted=2)
    assert (ended(found), found.num_new) == ([], 0)


def test_each_newer_one_that_is_ready_replaces_an_older_one() -> None:
    found = changes("1 ready", "1 ready", "2 ready", wanted=2)
    assert (ended(found), found.num_new) == (["1"], 1)
    found = changes("1 ready", "1 draining", "2 ready", "2 ready", wanted=2)
    assert (ended(found), found.num_new) == (["0"], 0)


def test_older_ones_that_do_not_serve_end_at_once_if_theirs_never_did_or_a_newer_one_does() -> None:
    never = changes("1 starting", "1 failed", "1 pending", "2 loading", wanted=1, served=None)
    assert ended(never) == ["0", "1", "2"]
    found = changes("1 starting", "1 failed", "1 ready", "2 ready", wanted=2, served=2)
    assert ended(found) == ["0", "1"]


@pytest.mark.parametrize("state", ["pending", "placing", "starting", "loading", "warming", "lost", "failed"])
@pytest.mark.parametrize("newest", ["2 failed", "2 loading", "2 pending"])
def test_a_crash_of_an_older_one_ends_nothing_while_no_newer_one_serves(state: str, newest: str) -> None:
    found = changes("1 ready", f"1 {state}", newest, wanted=2)
    assert (ended(found), found.num_new, found.num_served) == ([], 0, 0)


def test_what_is_missing_of_the_generation_that_serves_is_made_anew_when_the_newest_have_failed() -> None:
    found = changes("2 failed", wanted=2)
    assert (ended(found), found.num_new, found.num_served) == ([], 0, 2)
    found = changes("1 loading", "1 failed", "2 failed", "2 failed", wanted=3)
    assert (ended(found), found.num_new, found.num_served) == (["3"], 0, 1)


def test_nothing_is_made_anew_of_what_made_room_until_the_newest_have_failed() -> None:
    """It would take the room back, and so on for ever."""
    for newest in ("2 pending", "2 loading"):
        assert changes("1 ready", newest, wanted=2).num_served == 0
    assert changes("2 pending", wanted=2, finds_no_room=("0",)).num_served == 2
    assert changes("2 pending", wanted=2, helped_by_room=("0",)).num_served == 0


@pytest.mark.parametrize("served", [None, 1, 2])
def test_nothing_is_made_anew_of_what_never_served_or_of_another_launch(served: int | None) -> None:
    found = changes("2 failed", wanted=1, first=2, served=served)
    assert (found.num_new, found.num_served) == (0, 0)


def test_room_is_made_by_those_that_hold_some() -> None:
    found = changes("1 ready", "1 pending", "2 pending", wanted=2, helped_by_room=("2",))
    assert ended(found) == ["0"]
    found = changes("1 ready", "1 loading", "2 pending", wanted=2, helped_by_room=("2",))
    assert ended(found) == ["1"], "the one that serves nobody yet"


def test_where_there_is_no_room_beside_them_one_older_makes_room() -> None:
    found = changes("1 ready", "1 ready", "2 pending", wanted=2, helped_by_room=("2",))
    assert ended(found) == ["1"]
    found = changes("1 ready", "1 draining", "2 pending", wanted=2, helped_by_room=("2",))
    assert ended(found) == [], "its room comes back first"


def test_an_update_that_fails_leaves_the_older_ones_serving() -> None:
    found = changes("1 ready", "1 ready", "2 failed", wanted=2)
    assert (ended(found), found.num_new) == ([], 0)


def test_a_launch_after_a_stop_keeps_nothing_of_the_one_before() -> None:
    found = changes("1 ready", wanted=1, first=2)
    assert (ended(found), found.num_new) == (["0"], 1)


def test_an_update_of_an_update_replaces_both() -> None:
    found = changes("1 ready", "2 loading", wanted=1, generation=3)
    assert (ended(found), found.num_new) == (["1"], 1), "of the first two the first has served"
    found = changes("1 ready", "3 ready", wanted=1, generation=3)
    assert (ended(found), found.num_new) == (["0"], 0)


def test_nothing_wanted_ends_every_generation() -> None:
    assert ended(changes("1 ready", "2 ready", "2 pending", wanted=0)) == ["0", "1", "2"]


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_an_update_comes_to_its_end_and_serves_with_all_but_surplus_ones(wanted: int) -> None:
    """Played through: what is made becomes ready, what ends is gone, one thing a turn."""
    generations = [1] * wanted
    for _ in range(10 * wanted):
        found = changes(*(f"{generation} ready" for generation in generations), wanted=wanted)
        if not found.ended and not found.num_new:
            break
        gone = {int(instance.id) for instance, _ in found.ended}
        generations = [g for number, g in enumerate(generations) if number not in gone] + [2] * found.num_new
        assert wanted <= len(generations) <= wanted + 1
    assert generations == [2] * wanted
