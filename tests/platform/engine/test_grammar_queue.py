"""Grammars compiled beside the loop: in order, with a time limit, without holding anybody up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from trivet.engine.grammar import Grammar, GrammarCompiler
from trivet.engine.grammar_queue import MAX_WAITING, TIMEOUT_S, Compiled, GrammarQueue
from trivet.engine.sequence import Sequence
from trivet.errors import DeadlinePassed, Overloaded, RequestError
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams


class Compiler:
    """Takes as long as a test wants for regex "slow", and refuses "bad"."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.compiled: list[str | None] = []

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        self.compiled.append(params.regex)
        if params.regex == "slow":
            self.begun.set()
            assert self.go_on.wait(30)
        if params.regex == "bad":
            raise RequestError("bad")
        return cast("Grammar", f"grammar of {params.regex}")


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    made = Compiler()
    yield made
    made.go_on.set()


Make = Callable[..., GrammarQueue]


@pytest.fixture
def make_queue(compiler: Compiler) -> Iterator[Make]:
    made: list[GrammarQueue] = []

    def make(clock: Callable[[], float] = time.monotonic) -> GrammarQueue:
        made.append(GrammarQueue(cast("GrammarCompiler", compiler), lambda: None, clock))
        return made[-1]

    yield make
    compiler.go_on.set()
    for one in made:
        one.close()


def submit(queue: GrammarQueue, *regexes: str) -> list[Sequence]:
    sequences = [Sequence(f"{regex} {n}", [1], SamplingParams()) for n, regex in enumerate(regexes)]
    for sequence, regex in zip(sequences, regexes, strict=True):
        queue.submit(sequence, StructuredOutputsParams(regex=regex))
    return sequences


def take(queue: GrammarQueue, count: int) -> list[Compiled]:
    taken: list[Compiled] = []
    deadline = time.monotonic() + 20
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} were taken"
        taken += queue.take()
    return taken


def test_sequences_come_back_in_order_with_their_grammar_or_the_reason(make_queue: Make) -> None:
    queue = make_queue()
    sequences = submit(queue, "a", "bad", "c")
    assert len(queue) == 3
    taken = take(queue, 3)
    assert [one.sequence for one in taken] == sequences
    assert [cast("Any", one.sequence.grammar) for one in taken] == ["grammar of a", None, "grammar of c"]
    assert isinstance(taken[1].error, RequestError)
    assert (taken[0].error, taken[2].error, len(queue)) == (None, None, 0)


def test_the_order_holds_while_they_are_taken_as_they_are_compiled(make_queue: Make) -> None:
    queue, interval_s = make_queue(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the thread is done with some in the middle of `take`
    try:
        for _ in range(300):
            sequences = submit(queue, *"abcdef")
            assert [one.sequence for one in take(queue, 6)] == sequences
    finally:
        sys.setswitchinterval(interval_s)


def test_nothing_is_taken_while_it_compiles_and_the_loop_is_not_held_up(
    make_queue: Make, compiler: Compiler
) -> None:
    queue = make_queue()
    submit(queue, "slow")
    assert compiler.begun.wait(20)
    assert queue.take() == []
    compiler.go_on.set()
    assert len(take(queue, 1)) == 1


def test_a_cancelled_sequence_does_not_come_back(make_queue: Make, compiler: Compiler) -> None:
    queue = make_queue()
    first, second = submit(queue, "slow", "b")
    queue.cancel(first.request_id)
    compiler.go_on.set()
    assert [one.sequence for one in take(queue, 1)] == [second]
    assert len(queue) == 0


def test_cancelled_sequences_cost_no_compilation(make_queue: Make, compiler: Compiler) -> None:
    queue = make_queue()
    _, *cancelled, last = submit(queue, "slow", "b", "c", "d")
    assert compiler.begun.wait(20)
    for sequence in cancelled:
        queue.cancel(sequence.request_id)
    compiler.go_on.set()
    assert take(queue, 2)[-1].sequence is last
    assert compiler.compiled == ["slow", "d"], "n completions of a bad grammar would hold up all others"


def test_a_closed_queue_begins_nothing_more(make_queue: Make, compiler: Compiler) -> None:
    before = set(threading.enumerate())
    queue = make_queue()
    submit(queue, "slow", "b")
    assert compiler.begun.wait(20)
    (thread,) = set(threading.enumerate()) - before
    queue.close()
    compiler.go_on.set()
    thread.join(20)
    assert (compiler.compiled, len(queue)) == (["slow"], 0)


def test_a_deadline_ends_a_sequence_while_another_grammar_is_compiled(
    make_queue: Make, compiler: Compiler
) -> None:
    now = [100.0]
    queue = make_queue(lambda: now[0])
    submit(queue, "slow")
    hurried = Sequence("hurried", [1], SamplingParams(), deadline_s=101.0)
    queue.submit(hurried, StructuredOutputsParams(regex="b"))
    assert compiler.begun.wait(20)
    assert queue.take() == []
    now[0] = 101.0
    (late,) = queue.take()
    assert (late.sequence, hurried.grammar) == (hurried, None)
    assert isinstance(late.error, DeadlinePassed)


def test_a_grammar_that_takes_too_long_is_given_up_and_the_others_go_on(
    make_queue: Make, compiler: Compiler
) -> None:
    now = [100.0]
    queue = make_queue(lambda: now[0])
    slow, other = submit(queue, "slow", "b")
    assert compiler.begun.wait(20)
    assert queue.take() == []
    now[0] += TIMEOUT_S + 1
    (late,) = queue.take()[:1]
    assert late.sequence is slow
    assert "took more than 10 s" in str(late.error)
    (ready,) = take(queue, 1)
    assert (ready.sequence, ready.error) == (other, None), "by another thread, while the first is still at it"


def test_a_full_queue_refuses(make_queue: Make, compiler: Compiler) -> None:
    queue = make_queue()
    submit(queue, "slow", *("b" for _ in range(MAX_WAITING - 1)))
    with pytest.raises(Overloaded, match="256 requests wait"):
        submit(queue, "c")
