"""The order of turns, and what is refused as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from trivet_bars.bars import Transport
from trivet_bars.ladder import MEASURES, Measure
from trivet_bars.rounds import ShortAnswer, Turn, median_of, take_turns, turns_of, values_of

from trivet.bench.arrivals import Arrivals
from trivet.bench.load import Load, LoadRun
from trivet.bench.prompts import Form
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Seeds, Workload

ONE_STREAM = MEASURES["one_stream"]


class FakeEngine:
    """Brings a token every `step_s`; notes who was asked, in a list that engines share."""

    transport = Transport.IN_PROCESS
    skips: frozenset[str] = frozenset()
    command = "fake"
    versions: Mapping[str, str] = {}
    form: Form = "ids"
    id_range = (0, 100)

    def __init__(self, name: str, asked: list[tuple[str, Workload]], step_s: float, lacks: int = 0) -> None:
        self.name, self._asked, self._step_s, self._lacks = name, asked, step_s, lacks

    def load(self, measure: Measure) -> Load:
        return self

    def peak_rss_bytes(self) -> int:
        return 0

    def stop(self) -> None:
        pass

    def run(
        self, workload: Workload, arrivals: Arrivals, rng: np.random.Generator, on_done: Callable[[], object]
    ) -> LoadRun:
        self._asked.append((self.name, workload))
        timelines = []
        for (turn,) in workload.conversations:
            timeline = Timeline(0.0, turn.max_tokens, len(turn.prompt.ids or ()), 0.0)
            for number in range(turn.max_tokens - self._lacks):
                timeline.add((number + 1) * self._step_s, 1)
            timeline.finish(timeline.token_times_s[-1])
            timelines.append(timeline)
        return LoadRun(timelines, {})


def turns(asked: list[tuple[str, Workload]], lacks: int = 0) -> list[Turn]:
    engines = [FakeEngine("a", asked, 0.01), FakeEngine("b", asked, 0.02, lacks)]
    return [Turn(engine, ONE_STREAM, Seeds(1, 2)) for engine in engines]


def test_engines_take_turns_after_all_have_warmed_up() -> None:
    asked: list[tuple[str, Workload]] = []
    samples = list(take_turns(turns(asked), 2, lambda: 0.0))
    assert [(s.engine, s.round_number) for s in samples] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert [name for name, _ in asked] == [*"ab", *"aabb", *"bbaa"]


def test_without_turns_there_are_no_samples() -> None:
    assert list(take_turns([], 2, lambda: 0.0)) == []


def test_engines_get_the_same_prompts_and_none_twice() -> None:
    asked: list[tuple[str, Workload]] = []
    list(take_turns(turns(asked), 2, lambda: 0.0))
    of = {name: [w.conversations for asked_name, w in asked if asked_name == name] for name in "ab"}
    assert of["a"] == of["b"]
    assert len({conversations[0][0].prompt.ids for conversations in of["a"]}) == 5


def test_figures_are_those_of_trivet_bench() -> None:
    samples = list(take_turns(turns([]), 1, lambda: 0.25))
    assert values_of(samples, "a", ONE_STREAM) == [pytest.approx(100.0)]
    assert median_of(samples, "b", ONE_STREAM) == pytest.approx(50.0)
    assert samples[0].busy_before == 0.25
    assert median_of(samples, "c", ONE_STREAM) is None


def test_an_answer_that_is_too_short_is_no_figure() -> None:
    with pytest.raises(ShortAnswer, match="b at one_stream: of 1 answers 0 failed and 1 were too short"):
        list(take_turns(turns([], lacks=1), 1, lambda: 0.0))


def who(rung: str, skips: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    engines = [FakeEngine("trivet", [], 0.01), FakeEngine("peer", [], 0.01)]
    engines[1].skips = skips
    return [
        (turn.engine.name, turn.measure.name) for turn in turns_of(rung, list(MEASURES.values()), engines, 1)
    ]


def test_only_trivet_is_measured_with_sampling_beside_its_own_greedy_speed() -> None:
    assert who("at_once_32") == [
        ("trivet", "at_once_32"),
        ("peer", "at_once_32"),
        ("trivet", "at_once_32_sampled"),
    ]


def test_nobody_is_measured_where_no_bar_compares_this_transport() -> None:
    assert who("shared_prefix_cold") == []


def test_a_peer_is_left_out_of_what_it_cannot_do() -> None:
    names = [name for name, _ in who("shared_prefix_warm", frozenset({"shared_prefix_warm"}))]
    assert names == ["trivet"]


def test_sampled_and_greedy_prompts_differ() -> None:
    """Else the second of them would find the prompts of the first in a prefix cache."""
    engines = [FakeEngine("trivet", [], 0.01)]
    greedy, sampled = turns_of("one_stream", list(MEASURES.values()), engines, 1)
    assert greedy.seeds != sampled.seeds
