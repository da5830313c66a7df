"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading

import pytest

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
