"""What tabs are told: everything once, then what changed, and after a break what they missed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trivet.errors import Overloaded, Unavailable
from trivet_web.console import event_feed
from trivet_web.console.event_feed import EventFeed, Tab, Topic
from trivet_web.engines.mailbox import ClientGone

EVENT = re.compile(rb"event: (\w+)\nid: (\S+)\ndata: (.+)\n\n")


class Site:
    """Objects by topic, and a feed that looks at them often."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, bytes]] = {"things": {"a": b'{"n":1}'}, "others": {}}
        self.ticks = 0
        self.feed = EventFeed(
            [
                Topic("things", lambda: dict(self.objects["things"])),
                Topic("others", lambda: dict(self.objects["others"])),
                Topic("figures", self.tick, is_stream=True),
            ],
            interval_s=0.01,
        )

    def tick(self) -> dict[str, bytes]:
        self.ticks += 1
        return {"now": b"%d" % self.ticks}

    def join(self, *topics: str, after: str = "", may_listen: Callable[[], bool] = lambda: True) -> Tab:
        return self.feed.join(frozenset(topics), after, may_listen)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.feed.close()


def read(tab: Tab, count: int, within_s: float = 20.0) -> list[tuple[str, str, Any]]:
    """The next events: topic, id, data."""
    end_s, data, found = time.monotonic() + within_s, b"", []
    while len(found) < count:
        assert time.monotonic() < end_s, data
        data += tab.take(0.5) or b""
        found = [
            (topic.decode(), name.decode(), json.loads(text)) for topic, name, text in EVENT.findall(data)
        ]
    return found


def test_a_tab_is_told_everything_and_then_what_changes(site: Site) -> None:
    tab = site.join("things")
    assert [data for _, _, data in read(tab, 1)] == [{"all": [{"n": 1}]}]
    site.objects["things"] = {"b": b'{"n":2}'}
    assert [data for _, _, data in read(tab, 1)] == [{"set": [{"n": 2}], "gone": ["a"]}]


def test_a_tab_hears_only_what_it_asked_for(site: Site) -> None:
    tab, other = site.join("things"), site.join("others")
    read(tab, 1), read(other, 1)
    site.objects["others"] = {"x": b"1"}
    read(other, 1)
    site.objects["things"] = {}
    assert [data for _, _, data in read(tab, 1)] == [{"set": [], "gone": ["a"]}]


def test_a_tab_that_no_thread_can_look_for_is_told_and_the_next_one_is_in(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(Unavailable, match="can't start new thread; try again"):
            site.join("things")
    tab = site.join("things")
    read(tab, 1)
    site.objects["things"] = {}
    assert [data for _, _, data in read(tab, 1)] == [{"set": [], "gone": ["a"]}]


def test_a_stream_brings_each_look(site: Site) -> None:
    tab = site.join("figures")
    numbers = [data["set"][0] for _, _, data in read(tab, 3)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)


def test_what_was_missed_is_told_and_nothing_twice(site: Site) -> None:
    tab, keeper = site.join("things"), site.join("things")
    ((_, last_id, _),) = read(tab, 1)
    read(keeper, 1)
    tab.close()
    site.objects["things"] = {"a": b'{"n":1}', "c": b'{"n":3}'}
    ((_, new_id, _),) = read(keeper, 1)
    again = site.join("things", after=last_id)
    assert [data for _, _, data in read(again, 1)] == [{"set": [{"n": 3}], "gone": []}]
    current = site.join("things", after=new_id)
    assert current.take(0.1) is None


@pytest.mark.parametrize("after", ["nonsense", "00000000-1", "-", "x-9999999999"])
def test_who_names_an_event_that_is_not_known_is_told_everything(site: Site, after: str) -> None:
    assert [data for _, _, data in read(site.join("things", after=after), 1)] == [{"all": [{"n": 1}]}]


def test_a_future_number_is_not_known_either(site: Site) -> None:
    ((_, last_id, _),) = read(site.join("things"), 1)
    later = f"{last_id.partition('-')[0]}-{10**6}"
    assert "all" in read(site.join("things", after=later), 1)[0][2]


def test_a_login_that_ended_ends_its_tab(site: Site) -> None:
    tab = site.join("things", may_listen=lambda: False)
    read(tab, 1)
    end_s = time.monotonic() + 20
    while not tab.is_over:
        assert time.monotonic() < end_s
        tab.take(0.1)


def test_a_registry_that_is_away_for_a_while_ends_nothing(site: Site) -> None:
    tab = site.join("things")
    read(tab, 1)
    kept = site.objects.pop("things")
    time.sleep(0.05)
    site.objects["things"] = {**kept, "d": b"4"}
    assert read(tab, 1)[0][2]["set"] == [4]


@pytest.mark.parametrize("read_by", ["another tab that joins", "a look at logins"])
def test_a_tab_leaves_while_the_registry_does_not_answer(site: Site, read_by: str) -> None:
    """On the relay's thread, which all streams of the process wait for."""
    waits, answers = threading.Event(), threading.Event()

    def ask() -> bool:
        waits.set()
        return answers.wait(60)

    def look() -> dict[str, bytes]:
        ask()
        return {}

    if read_by == "a look at logins":
        tab = site.join("things", may_listen=ask)
    else:
        tab = site.join("things")
        site.feed._topics["others"] = Topic("others", look)
        joins = threading.Thread(target=site.join, args=["others"])
        joins.start()
    leaves = threading.Thread(target=tab.close)
    try:
        assert waits.wait(30)
        leaves.start()
        leaves.join(30)
        assert not leaves.is_alive()
    finally:
        answers.set()
        leaves.join()
        if read_by != "a look at logins":
            joins.join()


def test_a_check_of_logins_that_fails_leaves_the_feed_at_work(site: Site) -> None:
    looked = threading.Event()

    def fail() -> bool:
        looked.set()
        raise RuntimeError("no descriptor is free")

    tab = site.join("things", may_listen=fail)
    read(tab, 1)
    assert looked.wait(30)
    site.objects["things"] = {}
    assert read(tab, 1)[0][2] == {"set": [], "gone": ["a"]}


def test_a_tab_that_joins_a_feed_that_is_closed_ends(site: Site) -> None:
    site.feed.close()
    assert b"".join(site.join("things"))
    assert not site.feed._thread


def test_a_tab_that_takes_nothing_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_UNREAD", 3)
    tab = site.join("figures")
    end_s = time.monotonic() + 20
    while site.ticks < 10:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert tab.take(0.1) == b""
    assert tab.is_over


def test_a_tab_is_over_when_its_reader_knows(site: Site) -> None:
    """Else the pump, between two looks at it, would close without the last chunk."""
    tab = site.join("things")
    read(tab, 1)
    tab.end()
    assert not tab.is_over
    assert tab.take(0.1) == b""
    assert tab.is_over


def test_a_client_that_hangs_up_ends_its_tab(site: Site) -> None:
    tab = site.join("things")
    tab.mailbox.fail(ClientGone("gone"))
    assert tab.take(1.0) == b""
    assert tab.is_over


def test_closing_the_feed_ends_every_tab(site: Site) -> None:
    tab = site.join("others")
    read(tab, 1)
    site.feed.close()
    assert b"".join(tab) == b""


def test_there_is_an_end_to_tabs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MAX_TABS", 1)
    site.join("others")
    with pytest.raises(Overloaded, match="1 tabs"):
        site.join("others")
