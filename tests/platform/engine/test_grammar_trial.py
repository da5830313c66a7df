"""Hostile grammars: each ends with its trial, nothing goes on computing, and others get their turn."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trivet.engine.grammar import GrammarCompiler
from trivet.engine.grammar_queue import SLOW_S, GrammarQueue
from trivet.engine.grammar_trial import GrammarTrial
from trivet.engine.sequence import Sequence
from trivet.errors import Overloaded, RequestError, Unavailable, UnsupportedParameter
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams


def patterns(first: int) -> dict[str, Any]:
    """1 KB that keeps the library busy for minutes: what all of them match has states without number."""
    return {
        "json": {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(first, first + 29)]}
    }


def nested(count: int) -> dict[str, Any]:
    """Overflows the stack on which it is compiled."""
    rules = [f"r{n}: r{n + 1} r{n + 1}" for n in range(count)]
    return {"grammar": "\n".join(["start: r0", *rules, f'r{count}: "a"'])}


def doubled(depth: int) -> dict[str, Any]:
    """A word of 2**depth letters, spelled out."""
    terms = [f"T{n}: T{n + 1} T{n + 1}" for n in range(depth)]
    return {"grammar": "\n".join(["start: T0", *terms, f'T{depth}: "a"'])}


@pytest.fixture(scope="module")
def trial(compiler: GrammarCompiler) -> Iterator[GrammarTrial]:
    made = GrammarTrial(compiler)
    yield made
    made.close()


def children_of(pid: int) -> list[int]:
    """Process ids."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "[a-z]{2,30}"},
        {"choice": ["Paris", "東京"]},
        {"json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(50)}}},
        {"json": {"enum": [f"xxxxxxxxxx{n}" for n in range(20_000)]}},
        {"json_object": True},
    ],
    ids=lambda params: str(params)[:30],
)
def test_what_can_be_compiled_passes(trial: GrammarTrial, params: Any) -> None:
    assert trial.run(StructuredOutputsParams(**params), SLOW_S)


@pytest.mark.parametrize("params", [{"regex": "(a"}, {"json": {"not": {}}}, {"regex": r"[^\s\S]"}])
def test_what_is_wrong_is_refused_in_the_words_of_the_compiler(
    trial: GrammarTrial, compiler: GrammarCompiler, params: Any
) -> None:
    form = StructuredOutputsParams(**params, sent_as="guided_x")
    errors = []
    for compile_it in (lambda: compiler.compile(form), lambda: trial.run(form, SLOW_S)):
        with pytest.raises(RequestError) as caught:
            compile_it()
        errors.append((type(caught.value), str(caught.value), caught.value.param))
    assert errors[0] == errors[1]
    assert errors[0][2] == "guided_x"


@pytest.mark.parametrize(
    "params",
    [patterns(1), nested(3000), doubled(40), {"json": {"required": [f"f{n}" for n in range(50_000)]}}],
    ids=["patterns", "nested rules", "doubled terms", "required"],
)
def test_a_hostile_grammar_ends_with_its_trial(trial: GrammarTrial, params: Any) -> None:
    """By processor time, memory or stack; then the next one is tried as if nothing had been."""
    before_s = time.process_time()
    assert not trial.run(StructuredOutputsParams(**params), 0.2)
    assert trial.run(StructuredOutputsParams(regex="a"), 0.2)
    process = trial._process
    assert process is not None
    computed_s = time.process_time() - before_s
    deadline = time.monotonic() + 20
    while children_of(process.pid):
        assert time.monotonic() < deadline, "something goes on computing"
        time.sleep(0.005)
    assert computed_s < 0.2, "and nothing was computed here"


def test_a_process_that_has_ended_is_started_again(compiler: GrammarCompiler) -> None:
    trial, form = GrammarTrial(compiler), StructuredOutputsParams(regex="a")
    assert trial.run(form, SLOW_S)
    process = trial._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(Unavailable, match="the grammar could not be tried"):
        trial.run(form, SLOW_S)
    assert trial.run(form, SLOW_S)
    trial.close()


def test_the_engine_that_dies_takes_it_along(compiler: GrammarCompiler) -> None:
    trial = GrammarTrial(compiler)
    assert trial.run(StructuredOutputsParams(regex="a"), SLOW_S)
    process = trial._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does for a dead process
    assert process.wait(20) == 0
    trial._process = None
    assert process.stdout is not None
    process.stdout.close()


def test_without_the_library_that_is_the_answer(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    trial = GrammarTrial(compiler)
    with pytest.raises(UnsupportedParameter, match="pip install"):
        trial.run(StructuredOutputsParams(regex="a"), SLOW_S)
    trial.close()


Make = Callable[[], GrammarQueue]


@pytest.fixture
def queue(compiler: GrammarCompiler) -> Iterator[GrammarQueue]:
    made = GrammarQueue(compiler, GrammarTrial(compiler), lambda: None)
    yield made
    made.close()


def add(queue: GrammarQueue, name: str, params: dict[str, Any]) -> None:
    queue.submit(Sequence(name, [1], SamplingParams()), StructuredOutputsParams(**params))


def test_one_that_is_honest_does_not_wait_for_thirty_that_are_hostile(queue: GrammarQueue) -> None:
    for number in range(30):
        add(queue, f"hostile {number}", patterns(number))
    add(queue, "honest", {"regex": "honest[0-9]"})
    ended: dict[str, Exception | None] = {}
    deadline = time.monotonic() + 100  # 3 s of processor time, and SLOW_S once at the most
    while "honest" not in ended:
        assert time.monotonic() < deadline
        ended |= {one.sequence.request_id: one.error for one in queue.take()}
        time.sleep(0.005)
    assert ended.pop("honest") is None
    assert all(isinstance(error, Overloaded | RequestError) for error in ended.values())
    assert len(ended) < 20, "those that wait for their longer try come after it"


def test_a_close_ends_what_is_tried(compiler: GrammarCompiler) -> None:
    before = set(threading.enumerate())
    queue = GrammarQueue(compiler, trial := GrammarTrial(compiler), lambda: None)
    for number in range(50, 60):
        add(queue, str(number), patterns(number))
    deadline = time.monotonic() + 60
    while trial._process is None or not children_of(trial._process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process = trial._process
    queue.close()
    assert process.returncode == -signal.SIGKILL
    assert set(threading.enumerate()) <= before
