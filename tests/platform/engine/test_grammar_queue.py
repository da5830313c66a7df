"""Grammars compiled beside the loop: in order, tried before, without holding anybody up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from trivet.engine.grammar import Grammar, GrammarCompiler
from trivet.engine.grammar_queue import MAX_SLOW, MAX_WAITING, QUICK_S, Compiled, GrammarQueue
from trivet.engine.grammar_trial import GrammarTrial
from trivet.engine.sequence import Sequence
from trivet.errors import DeadlinePassed, Overloaded, RequestError, Unavailable
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams


class Compiler:
    """Keeps what it has compiled."""

    def __init__(self) -> None:
        self.known: list[str | None] = []

    def cached(self, params: StructuredOutputsParams) -> Grammar | None:
        return cast("Grammar", f"grammar of {params.regex}") if params.regex in self.known else None

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        self.known.append(params.regex)
        return cast("Grammar", f"grammar of {params.regex}")


class Trial:
    """Takes as long as a test wants for "held", refuses "bad", fails at "odd"; "big" needs the longer try,
    "evil" more."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.tried: list[str | None] = []
        self.is_closed = False

    def run(self, params: StructuredOutputsParams, limit_s: float, niceness: int) -> bool:
        regex = params.regex or ""
        self.tried.append(regex)
        if regex == "held":
            self.begun.set()
            assert self.go_on.wait(30)
        if regex == "bad":
            raise RequestError("bad")
        if regex == "odd":
            raise ValueError("nobody foresaw it")
        return not regex.startswith(("big", "evil")) or (regex.startswith("big") and limit_s > QUICK_S)

    def end(self) -> None:
        self.go_on.set()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def trial() -> Trial:
    return Trial()


Make = Callable[..., GrammarQueue]


@pytest.fixture
def make_queue(trial: Trial) -> Iterator[Make]:
    made: list[GrammarQueue] = []

    def make(clock: Callable[[], float] = time.monotonic) -> GrammarQueue:
        compiler = cast("GrammarCompiler", Compiler())
        made.append(GrammarQueue(compiler, cast("GrammarTrial", trial), lambda: None, clock))
        return made[-1]

    yield make
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


def test_a_host_without_a_thread_left_refuses_no_grammar(
    make_queue: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    submit(queue, "a")
    assert take(queue, 1)[0].error is None


def test_what_nobody_foresaw_ends_its_own_sequence_and_no_other(make_queue: Make) -> None:
    queue = make_queue()
    submit(queue, "odd", "a")
    odd, good = take(queue, 2)
    assert isinstance(odd.error, Unavailable)
    assert "ValueError: nobody foresaw it" in str(odd.error)
    assert (good.error, cast("Any", good.sequence.grammar)) == (None, "grammar of a")


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
    make_queue: Make, trial: Trial
) -> None:
    queue = make_queue()
    submit(queue, "held")
    assert trial.begun.wait(20)
    assert queue.take() == []
    trial.go_on.set()
    assert len(take(queue, 1)) == 1


def test_a_cancelled_sequence_does_not_come_back(make_queue: Make, trial: Trial) -> None:
    queue = make_queue()
    first, second = submit(queue, "held", "b")
    queue.cancel(first.request_id)
    trial.go_on.set()
    assert [one.sequence for one in take(queue, 1)] == [second]
    assert len(queue) == 0


def test_cancelled_sequences_cost_nothing(make_queue: Make, trial: Trial) -> None:
    queue = make_queue()
    _, *cancelled, last = submit(queue, "held", "b", "c", "d")
    assert trial.begun.wait(20)
    for sequence in cancelled:
        queue.cancel(sequence.request_id)
    trial.go_on.set()
    assert take(queue, 2)[-1].sequence is last
    assert trial.tried == ["held", "d"], "n completions of a bad grammar would hold up all others"


def test_a_closed_queue_begins_nothing_more(make_queue: Make, trial: Trial) -> None:
    before = set(threading.enumerate())
    queue = make_queue()
    submit(queue, "held", "b")
    assert trial.begun.wait(20)
    queue.close()
    assert set(threading.enumerate()) <= before
    assert (trial.tried, trial.is_closed, len(queue)) == (["held"], True, 0)


def test_a_deadline_ends_a_sequence_while_another_grammar_is_compiled(make_queue: Make, trial: Trial) -> None:
    now = [100.0]
    queue = make_queue(lambda: now[0])
    submit(queue, "held")
    hurried = Sequence("hurried", [1], SamplingParams(), deadline_s=101.0)
    queue.submit(hurried, StructuredOutputsParams(regex="b"))
    assert trial.begun.wait(20)
    assert queue.take() == []
    now[0] = 101.0
    (late,) = queue.take()
    assert (late.sequence, hurried.grammar) == (hurried, None)
    assert isinstance(late.error, DeadlinePassed)


def test_who_takes_long_waits_until_nobody_waits_for_a_first_try(make_queue: Make, trial: Trial) -> None:
    queue = make_queue()
    submit(queue, "held", "evil", "big", "evil", "b")
    assert trial.begun.wait(20)
    trial.go_on.set()
    taken = take(queue, 5)
    assert trial.tried == ["held", "evil", "big", "b", "evil", "big"], "the same one is tried once for all"
    reason = "structured_outputs.regex takes more than 2 s to compile, or too much memory; simplify it"
    assert {one.sequence.request_id: str(one.error) for one in taken} == {
        "held 0": "None",
        "evil 1": reason,
        "big 2": "None",
        "evil 3": reason,
        "b 4": "None",
    }


def test_what_was_refused_is_refused_at_once_and_what_was_compiled_is_there(
    make_queue: Make, trial: Trial
) -> None:
    queue = make_queue()
    submit(queue, "evil", "bad", "a")
    take(queue, 3)
    trial.tried.clear()
    submit(queue, "evil", "bad", "a")
    again = {one.sequence.request_id: one.error for one in take(queue, 3)}
    assert trial.tried == []
    assert again.pop("a 2") is None
    assert all(isinstance(error, RequestError) for error in again.values())
    submit(queue, "a")
    assert len(queue.take()) == 1, "without a turn of the thread"


def test_so_many_wait_for_their_second_try_and_no_more(make_queue: Make, trial: Trial) -> None:
    queue = make_queue()
    submit(queue, "held", *(f"evil{n}" for n in range(MAX_SLOW + 3)))
    assert trial.begun.wait(20)
    trial.go_on.set()
    kinds = sorted(type(one.error).__name__ for one in take(queue, MAX_SLOW + 4))
    assert kinds == ["NoneType"] + 3 * ["Overloaded"] + MAX_SLOW * ["RequestError"]


def test_a_full_queue_refuses_and_says_when_it_will_be_half_full(make_queue: Make, trial: Trial) -> None:
    now = [100.0]
    queue = make_queue(lambda: now[0])
    submit(queue, "a")
    now[0] += 2.0
    take(queue, 1)
    submit(queue, "held", *("b" for _ in range(MAX_WAITING - 1)))
    with pytest.raises(Overloaded, match="256 requests wait") as caught:
        submit(queue, "c")
    assert caught.value.retry_after_s == 2 * MAX_WAITING / 2, "at one each 2 s"
