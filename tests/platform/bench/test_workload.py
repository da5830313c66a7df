"""Drawn workloads: lengths, sharing, conversations, and what the seed decides."""

from __future__ import annotations

import pytest

from trivet.bench.prompts import Form, Prompt
from trivet.bench.workload import Lengths, Seeds, Shape, Workload, drawn

IDS = (300, 8000)


def _draw(shape: Shape, form: Form = "ids", run: int = 1, seed: int = 0, salt: int = 1) -> Workload:
    return drawn(shape, form, IDS, Seeds(seed, salt))(run)


def _lengths(workload: Workload) -> list[tuple[int, int]]:
    return [
        (len(turn.prompt.ids or ()), turn.max_tokens) for turns in workload.conversations for turn in turns
    ]


RANGED = Shape(64, Lengths(5, 9), Lengths(2, 3))


def test_lengths_are_drawn_from_the_whole_range() -> None:
    prompts, outputs = zip(*_lengths(_draw(RANGED)), strict=True)
    assert set(prompts) == {5, 6, 7, 8, 9}
    assert set(outputs) == {2, 3}


def test_ids_are_in_their_range() -> None:
    ids = [i for turns in _draw(RANGED).conversations for i in turns[0].prompt.ids or ()]
    assert min(ids) >= 300
    assert max(ids) < 8000


def test_the_salt_changes_the_tokens_and_not_the_lengths() -> None:
    one, two = _draw(RANGED, salt=1), _draw(RANGED, salt=2)
    assert _lengths(one) == _lengths(two)
    assert one != two
    assert one == _draw(RANGED, salt=1)


def test_runs_and_seeds_share_no_prompt() -> None:
    shape = Shape(8, Lengths(16, 16), Lengths(1, 1))
    prompts = [turns[0].prompt.ids for run in (0, 1) for turns in _draw(shape, run=run).conversations]
    prompts += [turns[0].prompt.ids for turns in _draw(shape, seed=5).conversations]
    assert len(set(prompts)) == 24


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    shape = Shape(4, Lengths(8, 8), Lengths(1, 1), prefix_tokens=32)
    workload = _draw(shape)
    prompts = [turns[0].prompt.ids or () for turns in workload.conversations]
    assert {len(ids) for ids in prompts} == {40}
    assert len({ids[:32] for ids in prompts}) == 1
    assert len({ids[32:] for ids in prompts}) == 4
    assert workload.warm_up == ()


def test_only_the_prefix_is_warmed() -> None:
    workload = _draw(Shape(4, Lengths(8, 8), Lengths(1, 1), prefix_tokens=32, is_warm=True))
    (turn,) = workload.warm_up
    measured = [turns[0].prompt.ids or () for turns in workload.conversations]
    assert (turn.prompt.ids or ())[:32] == measured[0][:32]
    assert len(turn.prompt.ids or ()) == 33


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
def test_a_conversation_has_its_turns(form: Form) -> None:
    workload = _draw(Shape(2, Lengths(8, 8), Lengths(4, 4), num_turns=3), form)
    assert [len(turns) for turns in workload.conversations] == [3, 3]
    assert workload.num_requests == 6


def test_a_next_turn_resends_history_and_answer() -> None:
    ids = Prompt(ids=(1, 2)).answered("", [3]).then(Prompt(ids=(4,)))
    assert ids.fields == {"prompt": (1, 2, 3, 4)}
    text = Prompt(text="one").answered(" two", ()).then(Prompt(text="three"))
    assert text.fields == {"prompt": "one two three"}
    asked, more = {"role": "user", "content": "a"}, {"role": "user", "content": "c"}
    chat = Prompt(messages=(asked,)).answered("b", ()).then(Prompt(messages=(more,)))
    assert chat.fields == {"messages": (asked, {"role": "assistant", "content": "b"}, more)}


def test_words_stand_for_tokens_where_ids_are_not_taken() -> None:
    (turn,) = _draw(Shape(1, Lengths(12, 12), Lengths(1, 1)), "text").conversations[0]
    assert len((turn.prompt.text or "").split()) == 12
