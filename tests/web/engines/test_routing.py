"""Routing: which instance, how old the table may be, what is said when none can serve."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from trivet.errors import ModelNotFound, Unavailable
from trivet.messages import SILENCE_LIMIT_S, STALL_SILENCE_S, Beat, EngineLoad, Phase
from trivet_web.engines import routing
from trivet_web.engines.engine_link import EngineView
from trivet_web.engines.prefix_affinity import SPAN_TOKENS, PrefixAffinity, span_digests
from trivet_web.engines.routing import MAX_LOAD, NOWHERE, Deployed, InstanceRow, Router

if TYPE_CHECKING:
    from conftest import Eventually


class Site:
    """A registry and a relay of plain values."""

    def __init__(self, *rows: InstanceRow) -> None:
        self.rows = rows
        self.views: dict[str, EngineView] = {}
        self.now_s = 0.0
        self.num_reads = 0
        self.is_away = False
        self.settings: dict[str, str] = {}
        self.is_asleep = self.is_leaving = False
        self.replicas = 1
        self.router = Router(self.read, self.views.get, lambda table: None, lambda: self.now_s)

    def read(self) -> dict[str, Deployed]:
        self.num_reads += 1
        if self.is_away:
            raise Unavailable("the registry cannot be read: disk I/O error")
        state = {"is_asleep": self.is_asleep, "is_leaving": self.is_leaving}
        deployed = Deployed("m", "/models/m", 0, self.rows, self.replicas, settings=self.settings, **state)
        return {"m": deployed}

    def beat(self, instance: str, outstanding: int, phase: Phase = Phase.READY) -> EngineView:
        load = EngineLoad(num_tokens_outstanding=outstanding)
        view = self.views.setdefault(instance, EngineView(instance, 0.0))
        view.on_beat(Beat(instance, "lease", 1, 1, phase, load=load), self.now_s)
        return view


def ready(name: str) -> InstanceRow:
    return InstanceRow(name, "ready", max_model_len=100)


def test_fewest_outstanding_tokens_win() -> None:
    site = Site(ready("a"), ready("b"))
    site.beat("a", 500)
    site.beat("b", 400)
    assert {site.router.choose("m", 10).instance_id for _ in range(5)} == {"b"}


def test_a_burst_is_spread_before_any_report_of_it() -> None:
    site = Site(ready("a"), ready("b"), ready("c"))
    chosen = [site.router.choose("m", 100).instance_id for _ in range(30)]
    assert {name: chosen.count(name) for name in "abc"} == {"a": 10, "b": 10, "c": 10}


def test_tokens_are_given_back_as_they_arrive_and_at_the_end() -> None:
    site = Site(ready("a"), ready("b"))
    first = site.router.choose("m", 100)
    second = site.router.choose("m", 90)
    assert second.instance_id != first.instance_id
    first.use(60)  # 40 left, against 90
    assert site.router.choose("m", 1).instance_id == first.instance_id
    second.release()
    second.release()
    assert site.router.choose("m", 1).instance_id == second.instance_id


def test_table_is_read_at_most_twice_a_second() -> None:
    site = Site(ready("a"))
    for _ in range(10):
        site.router.choose("m", 1)
    assert site.num_reads == 1
    site.now_s = 0.5
    site.router.choose("m", 1)
    assert site.num_reads == 2


def test_lost_and_draining_engines_are_passed_over_at_once() -> None:
    site = Site(ready("a"), ready("b"), ready("c"))
    site.beat("a", 0).lose("ended", 0.0)
    site.beat("b", 0, Phase.DRAINING)
    assert {site.router.choose("m", 1).instance_id for _ in range(4)} == {"c"}


def test_last_table_serves_while_the_registry_is_away_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING")
    site = Site(ready("a"))
    site.router.table()
    site.is_away = True
    for _ in range(20):
        site.now_s += 1.0
        assert site.router.choose("m", 1).instance_id == "a"
    assert [record.getMessage() for record in caplog.records] == [
        "registry=unreadable table=stale error=the registry cannot be read: disk I/O error"
    ]
    assert site.num_reads == 11, "it is asked every 2 s"
    site.is_away, site.rows = False, (ready("b"),)
    site.now_s += 2.0
    assert site.router.choose("m", 1).instance_id == "b"
    site.is_away = True
    site.now_s += 1.0
    site.router.table()
    assert len(caplog.records) == 3, "its return, and the next outage"


def test_registry_that_was_never_read_is_unavailable_with_the_reason() -> None:
    site = Site(ready("a"))
    site.is_away = True
    with pytest.raises(Unavailable, match="disk I/O error"):
        site.router.choose("m", 1)
    site.is_away = False
    assert site.router.choose("m", 1).instance_id == "a"


def test_slow_registry_holds_up_one_thread_only() -> None:
    site = Site(ready("a"))
    is_reading, may_end = threading.Event(), threading.Event()

    def read() -> dict[str, Deployed]:
        if site.num_reads:
            is_reading.set()
            assert may_end.wait(20)
        return site.read()

    router = Router(read, site.views.get, lambda table: None, lambda: site.now_s)
    router.table()
    site.now_s = 1.0
    thread = threading.Thread(target=router.table)
    thread.start()
    assert is_reading.wait(20)
    assert router.choose("m", 1).instance_id == "a"
    may_end.set()
    thread.join(20)
    assert site.num_reads == 2


def test_many_who_want_a_fresh_table_share_one(eventually: Eventually) -> None:
    """An engine ends under 50 requests: each read of its own took all threads one after the other."""
    begun, may_end = threading.Event(), threading.Event()
    site = Site(ready("a"))
    site.router.table()
    read = site.read

    def slow() -> dict[str, Deployed]:
        begun.set()
        assert may_end.wait(20)
        return read()

    asked: list[float] = []

    def clock() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    site.router._read_table = slow
    site.router._clock = clock
    first = threading.Thread(target=lambda: site.router.table(fresh=True))
    first.start()
    assert begun.wait(20)
    num_asked = len(asked)
    others = [threading.Thread(target=lambda: site.router.table(fresh=True)) for _ in range(50)]
    for thread in others:
        thread.start()
    eventually(lambda: len(asked) == num_asked + len(others), what="all have asked")
    may_end.set()
    for thread in (first, *others):
        thread.join(20)
        assert not thread.is_alive()
    assert site.num_reads == 3, "one before, one that had begun, and one for those who asked later"


def test_new_deployment_is_found_although_the_table_is_fresh() -> None:
    site = Site()
    site.router.table()
    site.rows = (ready("a"),)
    assert site.router.choose("m", 1).instance_id == "a"


def test_unknown_model_lists_what_exists() -> None:
    with pytest.raises(ModelNotFound, match="deployed: m"):
        Site(ready("a")).router.choose("x", 1)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "no instance"),
        ((InstanceRow("a", "loading", "reads weights"),), "a is loading: reads weights"),
        ((InstanceRow("a", "failed", "exit code 1"), InstanceRow("b", "starting")), "b is starting"),
        ((InstanceRow("a", "failed", "exit code 1"),), "a is failed: exit code 1"),
    ],
)
def test_not_ready_names_the_nearest_instance(rows: tuple[InstanceRow, ...], words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        Site(*rows).router.choose("m", 1)


@pytest.mark.parametrize(("state", "retry_after_s"), [("loading", 2), ("failed", None)])
def test_who_asks_for_what_is_starting_is_told_when_to_ask_again(state, retry_after_s) -> None:
    with pytest.raises(Unavailable, match="try again later") as refused:
        Site(InstanceRow("a", state)).router.choose("m", 1)
    assert refused.value.retry_after_s == retry_after_s


def test_what_was_given_up_needs_an_operator_unless_another_instance_comes() -> None:
    given_up = InstanceRow("a", "failed", "no room", is_given_up=True)
    with pytest.raises(Unavailable, match=r"a is failed: no room; .* an operator has to mend it") as refused:
        Site(given_up).router.choose("m", 1)
    assert "later" not in str(refused.value)
    assert refused.value.retry_after_s is None
    with pytest.raises(Unavailable, match="try again later"):
        Site(given_up, InstanceRow("b", "loading")).router.choose("m", 1)


def test_what_was_stopped_is_not_promised_to_come_back() -> None:
    site = Site(InstanceRow("a", "draining"))
    site.is_leaving = True
    with pytest.raises(Unavailable, match=r"it was stopped, `trivet launch` starts it again$") as refused:
        site.router.choose("m", 1)
    assert refused.value.retry_after_s is None


@pytest.mark.parametrize("rows", [(), (InstanceRow("a", "draining"),)])
def test_what_was_scaled_to_nothing_is_not_promised_to_come_back(rows: tuple[InstanceRow, ...]) -> None:
    site = Site(*rows)
    site.replicas = 0
    with pytest.raises(Unavailable, match=r"scaled to 0 replicas; .* with `trivet scale m 1`$") as refused:
        site.router.choose("m", 1)
    assert "later" not in str(refused.value)
    assert refused.value.retry_after_s is None


def test_excluded_instance_is_not_chosen_again() -> None:
    site = Site(ready("a"), ready("b"))
    assert site.router.choose("m", 1, frozenset({"a"})).instance_id == "b"
    with pytest.raises(Unavailable):
        site.router.choose("m", 1, frozenset({"a", "b"}))


def test_context_is_that_of_the_smallest_ready_instance() -> None:
    rows = (InstanceRow("a", "ready", max_model_len=300), InstanceRow("b", "loading", max_model_len=100))
    assert Deployed("m", "", 0, rows).max_model_len == 300
    assert Deployed("m", "", 0, ()).max_model_len is None


# ---- prefix affinity -------------------------------------------------------------------------------


def test_a_prompt_goes_where_its_beginning_was_read_whatever_came_between() -> None:
    site = Site(ready("a"), ready("b"), ready("c"))
    talk = list(range(2 * SPAN_TOKENS))
    first = site.router.choose("m", 600, prompt=talk)
    first.release()
    for _ in range(7):
        site.router.choose("m", 10, prompt=[1, 2, 3]).release()
        again = site.router.choose("m", 700, prompt=[*talk, 7, 8, 9])
        assert again.instance_id == first.instance_id
        again.release()
    salted = {site.router.choose("m", 1, prompt=talk, salt=str(n)).instance_id for n in range(3)}
    assert len(salted) == 3, "another salt shares no KV"


def test_a_replica_that_has_its_share_of_work_gets_no_more_for_its_cache() -> None:
    site = Site(ready("a"), ready("b"))
    talk = list(range(SPAN_TOKENS))
    chosen = [site.router.choose("m", 300, prompt=talk).instance_id for _ in range(40)]
    counts = sorted(chosen.count(name) for name in "ab")
    assert counts[1] <= MAX_LOAD * 20 + 1


def test_the_longest_beginning_wins() -> None:
    site = Site(ready("a"), ready("b"))
    short = site.router.choose("m", 1, prompt=[5] * SPAN_TOKENS).instance_id
    longer = site.router.choose("m", 1, frozenset({short}), prompt=[5] * (2 * SPAN_TOKENS)).instance_id
    for name in (short, longer):
        site.beat(name, 1000)
    assert site.router.choose("m", 1, prompt=[5] * (3 * SPAN_TOKENS)).instance_id == longer


# ---- stalled replicas ------------------------------------------------------------------------------


def test_a_silent_replica_leaves_rotation_before_it_is_lost_and_returns_with_its_beat() -> None:
    site = Site(ready("a"), ready("b"))
    site.beat("a", 0)
    site.now_s = STALL_SILENCE_S + 0.1
    site.beat("b", 9000)
    assert {site.router.choose("m", 1).instance_id for _ in range(4)} == {"b"}
    site.beat("a", 0)
    assert site.router.choose("m", 1).instance_id == "a"


def test_a_replica_whose_step_is_overdue_gets_nothing_unless_it_is_the_last() -> None:
    site = Site(ready("a"), ready("b"))
    for name, due_s in (("a", 3.0), ("b", None)):
        beat = Beat(name, "lease", 1, 1, Phase.READY, step_started_s=0.0, step_due_s=due_s)
        site.views[name] = EngineView(name, 0.0)
        site.views[name].on_beat(beat, 3.1)
    site.now_s = 3.1
    assert {site.router.choose("m", 1).instance_id for _ in range(4)} == {"b"}
    assert site.router.choose("m", 1, frozenset({"b"})).instance_id == "a", "waiting is better than 503"


def test_an_idle_engine_that_only_beats_stays_in_rotation() -> None:
    """For an hour, which no test waits; nothing is sent to it, and nothing comes from it."""
    site = Site(ready("a"))
    for _ in range(3600):
        view = site.beat("a", 0)
        site.now_s += 1.0
        assert view.can_serve
        assert not view.is_silent(site.now_s)
        assert not view.is_stalled(site.now_s)
    assert site.router.choose("m", 1).instance_id == "a"
    site.now_s += SILENCE_LIMIT_S
    assert site.views["a"].is_silent(site.now_s), "and without a beat it is not"


def test_a_beginning_that_is_remembered_in_part_is_remembered_from_its_start() -> None:
    affinity = PrefixAffinity(max_spans=3)
    digests = span_digests(range(4 * SPAN_TOKENS), "")
    affinity.remember(digests, "a")
    assert affinity.matches(digests, ["a"]) == {"a": 3 * SPAN_TOKENS}


def test_one_that_was_refused_by_all_there_are_does_not_wait_for_the_same_again() -> None:
    """A deployment that is loaded on demand waits for an instance only where there is none."""
    site = Site(ready("a"))
    site.settings = {"idle_timeout_s": "60"}
    site.beat("a", 0)
    with pytest.raises(Unavailable):
        site.router.choose("m", 10, frozenset({"a"}))
    site.views["a"].lose("ended", site.now_s)
    assert site.router.choose("m", 10, frozenset({"a"})).instance_id == NOWHERE


@pytest.mark.parametrize("text", ["none", "None", "null", ""])
def test_nobody_waits_where_the_idle_timeout_is_set_to_none(text: str) -> None:
    site = Site()
    site.settings = {"idle_timeout_s": text}
    with pytest.raises(Unavailable):
        site.router.choose("m", 10)


def test_what_is_asleep_waits_whatever_its_settings_say_by_now() -> None:
    site = Site()
    site.is_asleep = True
    assert site.router.choose("m", 10).instance_id == NOWHERE


def test_where_an_instance_ran_is_known_for_a_while_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_PLACES", 3)
    stays = InstanceRow("stays", "ready", max_model_len=100, backend="cpu", device="host")
    site = Site(stays)
    for number in range(10):
        site.rows = (stays, InstanceRow(f"i{number}", "ready", max_model_len=100, backend="cpu"))
        site.now_s += 1.0
        site.router.table()
    assert site.router.place_of("stays") == ("cpu", "host")
    assert [site.router.place_of(f"i{number}")[0] for number in (7, 8, 9)] == ["", "cpu", "cpu"]


def test_what_an_engines_log_says_is_for_no_client() -> None:
    log = "its log ends with: KeyError: postgresql://user:secret@db"
    reason = f"gave up after 3 failures in a row; the first: exit code 1: {log}; the last: exit code 1: {log}"
    site = Site(InstanceRow("a", "failed", reason=reason))
    with pytest.raises(Unavailable) as caught:
        site.router.choose("m", 1)
    assert "a is failed: gave up after 3 failures in a row; the first: exit code 1; try" in str(caught.value)
    assert "secret" not in str(caught.value)
