"""Repeated runs: what counts, what only warms up, what is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trivet.bench.arrivals import Arrivals
from trivet.bench.figures import Slo
from trivet.bench.load import LoadRun, Measured, Scenario, measure
from trivet.bench.prompts import Form
from trivet.bench.suite import chosen, run_suite
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Lengths, Seeds, Shape, Workload, drawn
from trivet.errors import ConfigError, GenerationError

SEEDS = Seeds(0, 1)
EIGHT = Lengths(8, 8)


class Recorder:
    """Answers request i of run r after r + i seconds, and fails those whose prompt is over `longest`."""

    form: Form = "ids"
    id_range = (300, 8000)

    def __init__(self, longest: int = 100_000) -> None:
        self.workloads: list[Workload] = []
        self._longest = longest

    def run(
        self,
        workload: Workload,
        arrivals: Arrivals,
        rng: np.random.Generator,
        on_done: Callable[[], object],
    ) -> LoadRun:
        self.workloads.append(workload)
        timelines = []
        for number, (turn, *_) in enumerate(workload.conversations):
            timeline = Timeline(0.0, turn.max_tokens, num_prompt_tokens=len(turn.prompt.ids or ()))
            timeline.add(len(self.workloads) + number, turn.max_tokens)
            if timeline.num_prompt_tokens > self._longest:
                timeline.fail(0.0, "too long")
            timeline.finish(len(self.workloads) + number + 1.0)
            timelines.append(timeline)
            on_done()
        return LoadRun(timelines, {"extra": float(len(self.workloads))})


def _scenario(num_prompts: int, arrivals: Arrivals, prompt: Lengths = EIGHT) -> Scenario:
    shape = Shape(num_prompts, prompt, Lengths(64, 64))
    return Scenario("some", drawn(shape, "ids", (300, 8000), SEEDS), arrivals, Slo())


def test_the_first_run_warms_up_briefly_and_does_not_count() -> None:
    load = Recorder()
    measured = measure(load, _scenario(2, Arrivals()), SEEDS, 3)
    tokens = [[turns[0].max_tokens for turns in workload.conversations] for workload in load.workloads]
    assert tokens == [[16, 16], [64, 64], [64, 64], [64, 64]]
    assert [run["extra"] for run in measured.runs] == [2.0, 3.0, 4.0]
    assert measured.figures["extra"] == 3.0
    assert "decode_tokens_per_s" not in measured.figures
    assert measured.figures["goodput_requests_per_s"] == measured.figures["requests_per_s"]


def test_one_request_at_a_time_has_speeds_of_its_own() -> None:
    figures = measure(Recorder(), _scenario(1, Arrivals(concurrency=1)), SEEDS, 1).figures
    assert figures["prefill_tokens_per_s"] == pytest.approx(8 / 2)
    assert figures["decode_tokens_per_s"] == pytest.approx(63)
    open_loop = measure(Recorder(), _scenario(1, Arrivals(concurrency=1, rate=1.0)), SEEDS, 1)
    assert "decode_tokens_per_s" not in open_loop.figures


def test_failures_of_all_runs_are_told() -> None:
    measured = measure(Recorder(longest=8), _scenario(64, Arrivals(), Lengths(7, 9)), SEEDS, 2)
    assert measured.failures == {"too long": sum(int(run["num_failed"]) for run in measured.runs)}
    assert measured.failures["too long"] > 2
    assert measured.as_json()["failures"] == measured.failures


def test_a_load_that_answers_nothing_ends_with_the_first_run() -> None:
    load = Recorder(longest=1)
    with pytest.raises(GenerationError, match="no request was answered: 2 x too long"):
        measure(load, _scenario(2, Arrivals()), SEEDS, 5)
    assert len(load.workloads) == 1


def test_json_has_medians_spreads_and_who_counted() -> None:
    told = Measured([{"a": 1.0}, {"a": 123456.7}, {"a": 2.00049}], {}, is_counted_by_server=False).as_json()
    assert (told["a"], told["num_runs"], told["spread"]) == (2.0, 3, {"a": [1.0, 123457]})
    assert told["tokens_counted_by"] == "arrivals: the server sent no usage"


def test_the_suite_measures_each_scenario_with_prompts_of_its_own() -> None:
    load = Recorder()
    seen: list[str] = []
    results = run_suite(load, chosen([]), SEEDS, 1, on_measured=lambda rung, _: seen.append(rung.name))
    assert list(results) == seen
    assert len(seen) == 7
    prompts = [turns[0].prompt.ids for workload in load.workloads for turns in workload.conversations]
    assert len(set(prompts)) == len(prompts)
    lengths = {name: results[name].figures["prompt_tokens"] for name in seen}
    assert (lengths["prefill_1024"], lengths["at_once_32"]) == (1024, 32 * 128)
    assert lengths["shared_prefix_cold"] == lengths["shared_prefix_warm"] == 16 * 800


def test_only_known_scenarios_can_be_chosen() -> None:
    assert [rung.name for rung in chosen(["at_once_16", "one_stream"])] == ["one_stream", "at_once_16"]
    with pytest.raises(ConfigError, match="at_once_5"):
        chosen(["at_once_5"])
