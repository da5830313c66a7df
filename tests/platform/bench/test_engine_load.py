"""A load on an engine in this process, on the null backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trivet.bench.arrivals import Arrivals
from trivet.bench.engine_load import EngineLoad
from trivet.bench.figures import failures_of
from trivet.bench.jsonl_workload import read_workload
from trivet.bench.load import LoadRun
from trivet.bench.workload import Lengths, Seeds, Shape, Workload, drawn
from trivet.demo_model import find_demo_model
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    settings = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_waiting": 2}
    with LLM(find_demo_model(), backend="null", **settings) as llm:
        yield llm


def _workload(llm: LLM, shape: Shape, run: int) -> Workload:
    load = EngineLoad(llm, SamplingParams())
    return drawn(shape, load.form, load.id_range, Seeds(0, 1))(run)


def _run(llm: LLM, workload: Workload, arrivals: Arrivals) -> LoadRun:
    load = EngineLoad(llm, SamplingParams(temperature=0.0, ignore_eos=True))
    done: list[None] = []
    run = load.run(workload, arrivals, np.random.default_rng(3), lambda: done.append(None))
    assert len(done) == len(run.timelines) == workload.num_requests
    assert not llm.engine.core.has_work
    return run


def test_every_request_gets_its_tokens(llm: LLM) -> None:
    """More than the engine's queue holds: the rest waits in the load."""
    run = _run(llm, _workload(llm, Shape(20, Lengths(5, 9), Lengths(2, 6)), 1), Arrivals())
    assert all(t.is_complete and t.num_tokens == t.max_tokens for t in run.timelines)
    assert all(5 <= t.num_prompt_tokens <= 9 for t in run.timelines)
    assert all(t.sent_s is not None and t.due_s <= t.sent_s <= t.token_times_s[0] for t in run.timelines)


def test_the_closed_loop_bounds_what_is_open(llm: LLM) -> None:
    run = _run(llm, _workload(llm, Shape(9, Lengths(5, 5), Lengths(4, 4)), 2), Arrivals(concurrency=3))
    for timeline in run.timelines:
        assert sum(t.due_s <= timeline.due_s < t.end_s for t in run.timelines) <= 3
    assert run.extra["kv_sequences_running_peak"] == 3


def test_the_open_loop_waits_for_arrivals(llm: LLM) -> None:
    arrivals = Arrivals(rate=200.0)
    run = _run(llm, _workload(llm, Shape(6, Lengths(5, 5), Lengths(1, 1)), 3), arrivals)
    start = run.timelines[0].due_s
    offsets = arrivals.offsets_s(6, np.random.default_rng(3))
    assert [t.due_s - start for t in run.timelines] == pytest.approx(offsets)
    assert all(t.token_times_s[0] >= t.due_s for t in run.timelines)


def test_a_conversation_grows_by_its_answers(llm: LLM) -> None:
    run = _run(llm, _workload(llm, Shape(1, Lengths(8, 8), Lengths(4, 4), num_turns=3), 4), Arrivals())
    assert [t.num_prompt_tokens for t in run.timelines] == [8, 20, 32]
    assert run.timelines[1].due_s == run.timelines[0].end_s


def test_a_warm_prefix_is_found_and_a_cold_one_is_not(llm: LLM) -> None:
    shape = Shape(3, Lengths(8, 8), Lengths(1, 1), prefix_tokens=256)
    one_by_one = Arrivals(concurrency=1)
    cold = _run(llm, _workload(llm, shape, 5), one_by_one)
    assert cold.timelines[0].num_cached_tokens == 0
    warm_shape = Shape(3, Lengths(8, 8), Lengths(1, 1), prefix_tokens=256, is_warm=True)
    warm = _run(llm, _workload(llm, warm_shape, 6), one_by_one)
    assert [t.num_cached_tokens for t in warm.timelines] == [256, 256, 256]


def test_what_the_engine_refuses_is_named_and_the_rest_goes_on(llm: LLM) -> None:
    long, short = Lengths(2000, 2000), Lengths(5, 5)
    one = _workload(llm, Shape(1, long, Lengths(1, 1), num_turns=2), 7)
    two = _workload(llm, Shape(1, short, Lengths(1, 1)), 8)
    both = Workload(one.conversations + two.conversations)
    run = _run(llm, both, Arrivals())
    causes = failures_of(run.timelines)
    assert sum(t.is_complete for t in run.timelines) == 1
    assert causes.pop("an earlier turn of the conversation failed") == 1
    (cause,) = causes
    assert "2000 tokens" in cause


def test_lines_of_every_form_are_answered(llm: LLM, tmp_path: Path) -> None:
    lines = [
        {"prompt": "Hello there", "max_tokens": 3},
        {"prompt": [5, 6, 7]},
        {"messages": [{"role": "user", "content": "Hello"}]},
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    run = _run(llm, read_workload(file, 2), Arrivals())
    assert [t.num_tokens for t in run.timelines] == [3, 2, 2]
    assert run.timelines[1].num_prompt_tokens == 3
    assert run.timelines[2].num_prompt_tokens > 3  # the chat template's part
