"""Runners as real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from trivet_bars.child import Child, EngineFailed
from trivet_bars.engines import RunnerEngine, retried, wait_for_health
from trivet_bars.ladder import MEASURES

from trivet.bench.arrivals import Arrivals
from trivet.bench.prompts import Prompt
from trivet.bench.workload import Turn, Workload
from trivet.errors import TrivetError

RUNNER = """
import sys, time
from trivet_bars.orders import Arrivals, take_orders

class Fake:
    def generate(self, order):
        if order.prompts[0][0] == 13:
            raise ValueError("thirteen")
        if order.prompts[0][0] == 14:
            sys.exit("boom")
        print("a library that prints")
        requests = [Arrivals() for prompt in order.prompts]
        for number, request in enumerate(requests):
            request.add(time.perf_counter(), 0)
            request.add(time.perf_counter(), order.output_tokens)
        return requests

take_orders(Fake, ("pytest", "no-such-package"), {})
"""
MEASURE = MEASURES["at_once_16"]


def workload(*prompts: tuple[int, ...]) -> Workload:
    return Workload(tuple((Turn(Prompt(ids=ids), 4),) for ids in prompts))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RunnerEngine]:
    script = tmp_path / "runner.py"
    script.write_text(RUNNER)
    engine = RunnerEngine("fake", [sys.executable, str(script)], {}, tmp_path / "log", frozenset())
    yield engine
    engine.stop()


def run(engine: RunnerEngine, work: Workload) -> list[tuple[int, int]]:
    done = engine.load(MEASURE).run(work, Arrivals(16), np.random.default_rng(0), lambda: None)
    return [(t.num_prompt_tokens, t.num_tokens) for t in done.timelines]


def test_an_order_is_answered_prompt_by_prompt(engine: RunnerEngine) -> None:
    assert run(engine, workload((1, 2), (3,))) == [(2, 4), (1, 4)]


def test_what_a_library_prints_is_in_the_log_and_not_among_the_answers(
    engine: RunnerEngine, tmp_path: Path
) -> None:
    run(engine, workload((1,)))
    assert run(engine, workload((1,))) == [(1, 4)]
    engine.stop()
    assert "a library that prints" in (tmp_path / "log").read_text()


def test_versions_are_told(engine: RunnerEngine) -> None:
    assert engine.versions["pytest"] == pytest.__version__
    assert engine.versions["no-such-package"] == "unknown"


def test_the_peak_of_memory_is_told(engine: RunnerEngine) -> None:
    assert engine.peak_rss_bytes() > 1 << 20


def test_an_order_that_fails_leaves_the_engine_alive(engine: RunnerEngine) -> None:
    with pytest.raises(EngineFailed, match="fake: ValueError: thirteen"):
        run(engine, workload((13,)))
    assert run(engine, workload((1,))) == [(1, 4)]


def test_a_runner_that_dies_is_an_error_with_its_last_words(engine: RunnerEngine) -> None:
    with pytest.raises(EngineFailed, match="ended with exit code 1: boom"):
        run(engine, workload((14,)))


def test_a_runner_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import no_such_engine"]
    with pytest.raises(EngineFailed, match="No module named 'no_such_engine'"):
        RunnerEngine("fake", command, {}, tmp_path / "log", frozenset())


def test_a_server_that_dies_before_it_answers_is_an_error(tmp_path: Path) -> None:
    child = Child("server", [sys.executable, "-c", "raise SystemExit('no model')"], {}, tmp_path / "log")
    try:
        with pytest.raises(EngineFailed, match="exit code 1: no model"):
            wait_for_health("http://127.0.0.1:1", child)
    finally:
        child.stop()


def test_a_server_that_ends_while_the_model_is_deployed_is_told_at_once(tmp_path: Path) -> None:
    child = Child(
        "trivet serve", [sys.executable, "-c", "raise SystemExit('no supervisor')"], {}, tmp_path / "log"
    )

    def refused() -> None:
        raise TrivetError("no server answers")

    with pytest.raises(EngineFailed, match="no supervisor"):
        retried(refused, child)
    child.stop()
