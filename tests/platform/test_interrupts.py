"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model
from trivet.errors import Unavailable
from trivet.interrupts import held_back_interrupt


def interrupted(times: int, seen: list[str]) -> None:
    with held_back_interrupt():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        seen.append("the end of the block")


@pytest.mark.parametrize(("times", "comes_there"), [(1, True), (2, False)])
def test_the_interrupt_comes_at_the_end_of_the_block_and_a_second_one_at_once(
    times: int, comes_there: bool
) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(times, seen)
    assert bool(seen) is comes_there
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_happens_and_an_error_passes() -> None:
    with held_back_interrupt():
        pass
    with pytest.raises(ValueError, match="own"), held_back_interrupt():
        raise ValueError("own")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_handles_the_signal_keeps_its_handler() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    try:
        with held_back_interrupt():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    found: list[object] = []

    def look() -> None:
        with held_back_interrupt():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.parametrize("member", ["forward", "sample", "collect"])
def test_a_second_ctrl_c_breaks_off_the_step_and_the_model_answers_no_more(
    monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    """Its next step would be laid out over the arrays of one that may still run."""

    def interrupted(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with LLM(find_demo_model(), backend="null") as llm:
        monkeypatch.setattr(llm.engine.runner, member, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Hello", SamplingParams(max_tokens=4), use_tqdm=False)
        monkeypatch.undo()
        with pytest.raises(Unavailable, match="a second Ctrl-C broke off a step"):
            llm.generate("Hello", SamplingParams(max_tokens=4), use_tqdm=False)
