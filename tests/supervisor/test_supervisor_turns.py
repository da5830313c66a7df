"""When the supervisor looks again: a turn that failed is not repeated in every turn of the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import zmq

from trivet_registry.supervision import SupervisionLost
from trivet_supervisor import supervisor_process
from trivet_supervisor.supervisor_process import SupervisorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trivet_supervisor.means import Means
    from trivet_supervisor.reconcile import Reconciler
    from trivet_supervisor.server import Server


class EndedFleet:
    """An engine has ended, and that cannot be written down."""

    def hear(self) -> bool:
        return False

    def has_news(self) -> bool:
        return True

    def tell_of_watch(self) -> None:
        """Nobody is told."""

    def await_starts(self, timeout_s: float) -> None:
        """Nothing is started."""


class BrokenReconciler:
    fleet = EndedFleet()
    placing = SimpleNamespace(has_news=lambda: False)
    is_shutting_down = has_ended_unwritten = False
    num_turns = 0

    def tick(self) -> bool:
        self.num_turns += 1
        raise OSError("the disk is full")


class UnclaimedReconciler(BrokenReconciler):
    """Another supervisor has the claim."""

    def tick(self) -> bool:
        self.num_turns += 1
        raise SupervisionLost("another supervisor manages this registry")


def process_of(reconciler: Any, serve: Any, beats: Any, requests: Any) -> SupervisorProcess:
    return SupervisorProcess(
        cast("Means", None),
        cast("Reconciler", reconciler),
        cast("Any", SimpleNamespace(socket=beats)),
        cast("Server", SimpleNamespace(socket=requests, serve=serve, keep_bound=None)),
    )


def test_who_is_supervisor_no_more_leaves_at_once() -> None:
    """Two that act would start and kill each other's engines."""
    with zmq.Context() as context, context.socket(zmq.SUB) as beats, context.socket(zmq.ROUTER) as requests:
        reconciler = UnclaimedReconciler()
        process = process_of(reconciler, lambda _handle: None, beats, requests)
        with pytest.raises(SupervisionLost):
            process.run()
    assert reconciler.num_turns == 1


def test_a_turn_that_failed_waits_although_an_engine_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk made five tracebacks a second."""
    monkeypatch.setattr(supervisor_process, "RETRY_S", 3600.0)
    with zmq.Context() as context, context.socket(zmq.SUB) as beats, context.socket(zmq.ROUTER) as requests:
        reconciler = BrokenReconciler()
        left: Iterator[int] = iter(range(4))

        def serve(_handle: Any) -> None:
            if next(left, None) is None:
                process.leave()

        process = process_of(reconciler, serve, beats, requests)
        process.run()
    assert reconciler.num_turns == 1


class BusyReconciler(BrokenReconciler):
    """Each turn finds more to do, as with a hundred launches at once."""

    def tick(self) -> bool:
        self.num_turns += 1
        return True


def test_who_asks_is_answered_while_there_is_always_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_process, "MAX_TURNS_S", 0.0)
    with zmq.Context() as context, context.socket(zmq.SUB) as beats, context.socket(zmq.ROUTER) as requests:
        reconciler = BusyReconciler()
        turns: list[int] = []  # so far, each time requests are answered

        def serve(_handle: Any) -> None:
            turns.append(reconciler.num_turns)
            if len(turns) == 3:
                process.leave()

        process = process_of(reconciler, serve, beats, requests)
        process._server.keep_bound = lambda: None  # type: ignore[method-assign]
        process.run()
    assert 0 < turns[-1] < 20
