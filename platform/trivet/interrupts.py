"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back_interrupt() -> Iterator[None]:
    """KeyboardInterrupt comes at the end of the block; a second Ctrl-C does not wait, and costs the engine.

    Inside a step it would leave core and runner of different minds about what is in flight, and a notebook
    whose cell was stopped with a model that answers nothing any more. 2 us a block. Without effect in other
    threads, which no signal interrupts, and where the program handles SIGINT itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    has_come = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal has_come
        if has_come:
            raise KeyboardInterrupt
        has_come = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_come:
        raise KeyboardInterrupt
