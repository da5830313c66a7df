from __future__ import annotations

import threading

import pytest

from trivet.errors import DoesNotFit, Unavailable
from trivet_supervisor.deadline import within


def test_an_answer_and_a_failure_come_through() -> None:
    assert within(60, "adding", lambda: 1 + 1) == 2
    assert within(60, "nothing", lambda: None) is None

    def refuse() -> None:
        raise DoesNotFit("too large")

    with pytest.raises(DoesNotFit, match="too large"):
        within(60, "planning", refuse)


def test_what_does_not_return_is_given_up() -> None:
    let_go = threading.Event()
    with pytest.raises(Unavailable, match=r"planning took more than 0\.05 s"):
        within(0.05, "planning", lambda: let_go.wait(60))
    let_go.set()
