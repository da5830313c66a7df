"""Choosing where an instance runs may take long or for ever; nobody else waits for it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from trivet.engine.ledger import Holding, Ledger
from trivet.errors import DoesNotFit, Unavailable
from trivet.messages import Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.instance_state import InstanceState
from trivet_supervisor import placing
from trivet_supervisor.placing import Placing, StillPlacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import FakeClock, Site

NOBODY = Ledger()
TAKEN = Ledger([Holding("qwen", "i", "cpu", ("host",), 100, is_taken=True)])


class Slow:
    """A choice that ends when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.num_begun = 0

    def __call__(self) -> Any:
        self.num_begun += 1
        self.let_go.wait(60)
        return "chosen"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow()
    with monkeypatch.context() as patch:
        patch.setattr(placing, "PATIENCE_S", 0.05)
        yield slow
    slow.let_go.set()


def until_news(choices: Placing) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if choices.has_news():
            return
        deadline.wait(0.01)
    raise AssertionError("the choice does not end")


def until_taken(choices: Placing, slow: Slow) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        with suppress(Unavailable, StillPlacing):
            assert choices.take("a", NOBODY, slow) == "chosen"
            return
        deadline.wait(0.01)
    raise AssertionError("it is not placed again")


def test_a_choice_that_ends_soon_is_taken_at_once(clock: FakeClock) -> None:
    def refuse() -> Any:
        raise DoesNotFit("it needs 3 GiB")

    choices = Placing(clock, 45)
    answer: Any = "chosen"
    assert choices.take("a", NOBODY, lambda: answer) == "chosen"
    with pytest.raises(DoesNotFit, match="it needs 3 GiB"):
        choices.take("a", NOBODY, refuse)
    assert not choices.has_news()


def test_a_choice_that_takes_long_is_taken_later_and_not_begun_twice(slow: Slow, clock: FakeClock) -> None:
    choices = Placing(clock, 45)
    with pytest.raises(StillPlacing):
        choices.take("a", NOBODY, slow)
    assert choices.is_under_way("a")
    assert not choices.is_under_way("b")
    assert not choices.has_news()
    slow.let_go.set()
    until_news(choices)
    assert choices.take("a", NOBODY, slow) == "chosen"
    assert slow.num_begun == 1


def test_what_was_chosen_before_others_took_room_is_chosen_anew(slow: Slow, clock: FakeClock) -> None:
    choices = Placing(clock, 45)
    with pytest.raises(StillPlacing):
        choices.take("a", NOBODY, slow)
    slow.let_go.set()
    until_news(choices)
    assert choices.take("a", TAKEN, slow) == "chosen"
    assert slow.num_begun == 2


def test_one_that_hangs_is_given_up_in_a_sentence(slow: Slow, clock: FakeClock) -> None:
    choices = Placing(clock, 45)
    with pytest.raises(StillPlacing):
        choices.take("a", NOBODY, slow)
    clock.advance(46)
    assert choices.has_news()
    with pytest.raises(Unavailable, match="placing took more than 45 s; its backend or a file system may"):
        choices.take("a", NOBODY, slow)
    for _ in range(3):
        with pytest.raises(Unavailable, match="its last placing, given up after 45 s, still hangs"):
            choices.take("a", NOBODY, slow)
    assert slow.num_begun == 1, "threads that hang do not pile up"
    slow.let_go.set()
    until_taken(choices, slow)
    choices.forget("a")
    assert not choices.is_under_way("a")


def test_a_placement_that_hangs_holds_up_neither_ends_nor_stops_nor_other_placements(
    site: Site, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.launch("good")
    site.settle_at(["starting"])
    site.say(Phase.READY)
    place = site.places.place
    site.launch("stuck", backend="hanging")
    monkeypatch.setattr(
        site.places, "place", lambda *given: slow() if given[2] == "hanging" else place(*given)
    )
    site.settle_at(["placing", "ready"])
    site.launch("other")
    site.settle_at(["placing", "ready", "starting"])
    site.launcher.processes[0].code = 4
    site.settle()
    assert "exit code 4" in site.instances(InstanceState.PENDING)[0].reason
    site.change(stop_deployment, "stuck")
    site.settle()
    assert [i.state for i in site.instances() if i.deployment.name == "stuck"] == ["stopped"]
    assert slow.num_begun == 1


def test_a_placement_that_hangs_fails_after_its_limit(
    site: Site, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.places, "place", lambda *_: slow())
    site.launch()
    site.settle()
    site.wait(44, step_s=11)
    assert site.states() == ["placing"]
    site.wait(2)
    assert (site.only().state, "took more than 45 s" in site.only().reason) == ("failed", True)
