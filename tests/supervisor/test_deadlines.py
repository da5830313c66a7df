"""No instance stays in a state that passes: for each of them, what hangs there is ended at its deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from trivet.messages import Drain, Phase
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_supervisor import placing
from trivet_supervisor.instance_watch import Limits

if TYPE_CHECKING:
    from conftest import Site

S = InstanceState
RESTING = {S.PENDING, S.READY, S.STOPPED, S.FAILED}  # wait for a turn or for room, serve, have ended
LIMITS = Limits()


def place(site: Site) -> None:
    """In a backend that does not answer before the test is over."""
    placing.PATIENCE_S = 0.05  # the fixture `site` sets it back
    site.places.place = lambda *_: threading.Event().wait(60)  # type: ignore[method-assign,assignment]
    start(site)


def start(site: Site) -> None:
    site.launch()
    site.settle()


def load(site: Site) -> None:
    start(site)
    site.say(Phase.LOADING)


def warm(site: Site) -> None:
    start(site)
    site.say(Phase.WARMING)


def drain(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=10)
    site.settle()


def stop(site: Site) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=0)
    site.settle()


def lose(site: Site) -> None:
    """The first SIGKILL is lost."""
    site.make_ready()
    site.process.obeys = ()
    while site.states() == ["ready"]:
        site.wait(0.5)
    site.process.obeys = ("kill",)


# How to get there, what the engine goes on saying (None: nothing), and the seconds that it may take.
WAYS: dict[InstanceState, tuple[Callable[[Site], None], Phase | None, float]] = {
    S.PLACING: (place, None, LIMITS.placing_s),
    S.STARTING: (start, None, LIMITS.starting_s),
    S.LOADING: (load, Phase.LOADING, LIMITS.loading_stall_s),
    S.WARMING: (warm, Phase.WARMING, LIMITS.warming_s),
    S.DRAINING: (drain, Phase.DRAINING, 10 + LIMITS.drain_grace_s),
    S.STOPPING: (stop, Phase.STOPPING, LIMITS.stop_s),
    S.LOST: (lose, None, 5.0),
}


def has_left(site: Site, state: InstanceState) -> bool:
    with site.database.reading() as session:
        return state in [event.from_state for event in list_events(session, instance=site.only().id)]


def hang(site: Site, phase: Phase | None, seconds: float) -> None:
    """Time passes, and nothing changes but that the engine is heard."""
    step_s = min(seconds, max(1.0, seconds / 20))
    end_s = site.clock.now_s + seconds
    while site.clock.now_s < end_s:
        site.clock.advance(step_s)
        if phase is None:
            site.settle()
        else:
            site.say(phase)


@pytest.mark.parametrize("state", sorted(set(S) - RESTING))
def test_what_hangs_in_a_state_that_passes_is_ended_at_its_deadline(site: Site, state: InstanceState) -> None:
    enter, phase, limit_s = WAYS[state]
    enter(site)
    assert site.only().state == state
    hang(site, phase, 0.7 * limit_s)
    assert not has_left(site, state), "it has its time"
    hang(site, phase, 0.3 * limit_s + 2)
    assert has_left(site, state)


def test_a_launch_under_the_same_name_shortens_no_drain(site: Site) -> None:
    """The patience of a stop belongs to what it stopped."""
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=600)
    site.settle()
    site.wait(40)
    site.launch()
    site.settle()
    old, new = site.instances()
    for _ in range(125):
        site.clock.advance(4)
        site.say(Phase.DRAINING, old)
        site.say(Phase.READY, new)
    assert site.states() == ["draining", "ready"]
    site.change(update_deployment, "chat", Update(replicas=0))
    site.settle()
    last = site.wire.sent[-1][1]
    assert isinstance(last, Drain)
    assert last.timeout_s == site.settings.drain_timeout_s, "the new launch has the site's own patience"


@pytest.mark.parametrize(
    ("drain_timeout_s", "left"), [(None, ["draining", "stopped"]), (0.0, ["stopped", "stopped"])]
)
def test_a_stop_of_the_new_launch_shortens_the_old_drain_only_where_it_says_a_time(
    site: Site, drain_timeout_s: float | None, left: list[str]
) -> None:
    site.make_ready()
    site.change(stop_deployment, "chat", drain_timeout_s=600)
    site.settle()
    site.launch()
    site.settle()
    old, new = site.instances()
    site.say(Phase.READY, new)
    site.settle()
    assert site.states() == ["draining", "ready"]
    site.change(stop_deployment, "chat", drain_timeout_s=drain_timeout_s)
    site.settle()
    for _ in range(25):
        site.clock.advance(4)
        site.say(Phase.DRAINING, old)
        if site.states()[1] == "draining":
            site.say(Phase.DRAINING, new)
        site.settle()
    assert site.states() == left
