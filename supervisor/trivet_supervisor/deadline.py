"""A deadline for a call into a stranger's code, which may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from trivet.errors import Unavailable

T = TypeVar("T")


def within(limit_s: float, what: str, call: Callable[[], T]) -> T:
    """What the call returns or raises. Raises: Unavailable where it does neither in time."""
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # whatever it is: it is raised again, where it was called
            failures.append(error)

    # A daemon: one that hangs in a driver must not keep the process from ending.
    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(limit_s)
    if failures:
        raise failures[0]
    if not answers:
        raise Unavailable(f"{what} took more than {limit_s:g} s; its backend or a file system may hang")
    return answers[0]
