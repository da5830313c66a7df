from __future__ import annotations

import itertools

import pytest

from trivet_registry.instance_state import (
    LEGAL_MOVES,
    LIVE_STATES,
    PROCESS_STATES,
    IllegalMove,
    InstanceState,
    check_move,
)

S = InstanceState


def test_every_state_has_its_row_of_legal_moves() -> None:
    assert set(LEGAL_MOVES) == set(S)


def test_the_way_to_ready_and_back_is_legal() -> None:
    way = [S.PENDING, S.PLACING, S.STARTING, S.LOADING, S.WARMING, S.READY, S.DRAINING, S.STOPPING, S.STOPPED]
    for old, new in itertools.pairwise(way):
        assert new in LEGAL_MOVES[old]
        check_move(old, new)


@pytest.mark.parametrize(("old", "new"), [(S.PENDING, S.READY), (S.STOPPED, S.PENDING), (S.READY, S.LOADING)])
def test_an_illegal_move_names_both_states(old: S, new: S) -> None:
    with pytest.raises(IllegalMove, match=rf"from {old} to {new}"):
        check_move(old, new)


def test_every_state_with_a_process_can_fail_or_is_being_stopped() -> None:
    for state in PROCESS_STATES - {S.STOPPING, S.LOST}:
        assert {S.FAILED, S.LOST, S.STOPPING} <= LEGAL_MOVES[state]


def test_stopped_is_reached_from_every_other_state() -> None:
    reached = {S.STOPPED}
    while more := {old for old, new in LEGAL_MOVES.items() if new & reached} - reached:
        reached |= more
    assert reached == set(S)
    assert set(S) - {S.STOPPED} == LIVE_STATES
