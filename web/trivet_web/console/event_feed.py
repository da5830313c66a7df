"""What has changed on the site, once a second, for every open tab of this web process.

One thread looks at the registry while anybody listens, whatever the number of tabs. A tab is first told all
that there is, then each object that changed, whole. An event's id is the feed's mark and a number: a tab that
lost its connection names the last one it has, and is told what it missed, or everything anew where the feed
no longer knows that (or where another web process answers).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from trivet.errors import Overloaded, TrivetError, Unavailable
from trivet_web.answers.sse import PING, PING_S
from trivet_web.engines.mailbox import ClientGone, Loss, Mailbox

logger = logging.getLogger(__name__)
INTERVAL_S = 1.0
KEPT_EVENTS = 600  # about a minute of a busy site
MAX_UNREAD = 200  # of one tab
MAX_TABS = 500
CHECK_EVERY = 5  # looks between two times that a tab's login is looked up

Objects = Mapping[str, bytes]  # encoded object by id


@dataclass(frozen=True, slots=True)
class Topic:
    """`look` reads all of it. A stream has no state: what it brings is told as it is and not again."""

    name: str
    look: Callable[[], Objects]
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One on the wire, without its id."""

    number: int
    topic: str
    data: bytes


class Tab:
    """A listener, and the bytes of its answer (handover.ByteStream)."""

    ping = PING

    def __init__(self, feed: EventFeed, topics: frozenset[str], may_listen: Callable[[], bool]) -> None:
        self.mailbox = Mailbox()
        self.topics = topics
        self.may_listen = may_listen
        self.is_over = False
        self.on_close: Callable[[], None] = lambda: None
        self._feed = feed
        self._news: deque[bytes] = deque()
        self._shall_end = False

    def tell(self, event: bytes) -> None:
        """Any thread. One that takes nothing is ended: it connects again when it can."""
        if self._shall_end:
            return None
        if len(self._news) >= MAX_UNREAD:
            self._news.clear()
            return self.end()
        self._news.append(event)
        return self.mailbox.fail(_ARRIVED)

    def end(self) -> None:
        """Any thread. The tab connects again, perhaps elsewhere.

        It is over when its reader has taken that: else the pump would close between a chunk and the last one.
        """
        self._shall_end = True
        self.mailbox.fail(_ARRIVED)

    def __iter__(self) -> Iterator[bytes]:
        while not self.is_over:
            data = self.take(PING_S)
            yield self.ping if data is None else data

    @property
    def has_more(self) -> bool:
        return bool(self.mailbox.num_unread)

    def take(self, timeout_s: float) -> bytes | None:
        """Events as bytes; None if nothing came in time. Never raises."""
        items = self.mailbox.read(timeout_s)
        if any(isinstance(item, Loss) and isinstance(item.error, ClientGone) for item in items):
            self.is_over = True
            return b""
        if not items:
            return None
        self.is_over = self._shall_end
        news = []
        while self._news:
            news.append(self._news.popleft())
        return b"".join(news)

    def close(self) -> None:
        self._feed.leave(self)
        self.on_close()

    def __str__(self) -> str:
        return f"console_tab topics={','.join(sorted(self.topics))}"


class _Arrived(TrivetError):
    """Nothing is lost: it wakes whoever waits for the mailbox."""


_ARRIVED = _Arrived("there is news")


class EventFeed:
    """Thread-safe; one a web process. Its thread lives while a tab is open.

    The registry is never read under the lock: the relay's thread, which closes tabs, takes it, too.
    """

    def __init__(self, topics: Iterable[Topic], interval_s: float = INTERVAL_S) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._interval_s = interval_s
        self._mark = secrets.token_hex(4)
        self._lock = threading.RLock()
        self._tabs: set[Tab] = set()
        self._known: dict[str, Objects] = {}  # of topics that somebody listens to
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._number = 0
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._topics)

    def join(self, topics: frozenset[str], last_id: str, may_listen: Callable[[], bool]) -> Tab:
        """A new tab, which has what it missed before it, or everything. Raises: Overloaded, Unavailable."""
        tab = Tab(self, topics, may_listen)
        looked: dict[str, Objects] = {}
        while unknown := self._admit(tab, last_id, looked):
            for name in unknown:
                looked[name] = self._topics[name].look()
        return tab

    def leave(self, tab: Tab) -> None:
        with self._lock:
            self._tabs.discard(tab)

    def close(self) -> None:
        """Every tab is told to connect again. Idempotent."""
        self._is_closed.set()
        with self._lock:
            thread = self._thread
            for tab in self._tabs:
                tab.end()
        if thread is not None:
            thread.join()

    def _admit(self, tab: Tab, last_id: str, looked: Mapping[str, Objects]) -> list[str]:
        """Returns topics that must be looked at first; none: the tab is in. Raises: as `join`."""
        with self._lock:
            if len(self._tabs) >= MAX_TABS:
                raise Overloaded(f"{MAX_TABS} tabs of the console are open here", retry_after_s=10)
            missed = self._missed(last_id, tab.topics)
            if missed is None:
                told = sorted(tab.topics - self._streams())
                unknown = [name for name in told if name not in self._known and name not in looked]
                if unknown:
                    return unknown
                missed = [self._everything(name, looked) for name in told]
            for event in missed:
                tab.tell(self._encoded(event))
            if self._is_closed.is_set():
                tab.end()
            elif self._thread is None:
                self._begin()
            self._tabs.add(tab)
        return []

    def _begin(self) -> None:
        """With the lock held: its thread lives. Raises: Unavailable."""
        thread = threading.Thread(target=self._run, name="console-events", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the account, or of the container
            raise Unavailable(
                f"no thread can look for what changes: {error}; try again", retry_after_s=10
            ) from error
        self._thread = thread

    def _missed(self, last_id: str, topics: frozenset[str]) -> list[Event] | None:
        """Since that event; None where that cannot be told."""
        mark, _, number = last_id.partition("-")
        if mark != self._mark or not number.isdigit() or not topics <= self._known.keys() | self._streams():
            return None
        seen = int(number)
        oldest = self._events[0].number if self._events else self._number + 1
        if seen > self._number or seen < oldest - 1:
            return None
        return [event for event in self._events if event.number > seen and event.topic in topics]

    def _streams(self) -> frozenset[str]:
        return frozenset(name for name, topic in self._topics.items() if topic.is_stream)

    def _everything(self, name: str, looked: Mapping[str, Objects]) -> Event:
        if name not in self._known:
            self._known[name] = looked[name]
        return Event(self._number, name, b'{"all":[%b]}' % b",".join(self._known[name].values()))

    def _run(self) -> None:
        turn = 0
        while not self._is_closed.wait(self._interval_s):
            turn += 1
            try:
                self._look()
                if turn % CHECK_EVERY == 0:
                    self._check_logins()
            except SQLAlchemyError as error:  # a registry that is away for a while
                logger.warning("console events: %s", error)
            except Exception:  # a border like a loop's: without this thread no tab hears anything
                logger.exception("console events")
            with self._lock:
                if not self._tabs:
                    self._known.clear()
                    self._events.clear()
                    self._thread = None
                    return

    def _look(self) -> None:
        with self._lock:
            wanted = frozenset[str]().union(*(tab.topics for tab in self._tabs))
        for name in sorted(wanted):
            seen = self._topics[name].look()
            with self._lock:
                self._take(self._topics[name], seen)

    def _check_logins(self) -> None:
        with self._lock:
            tabs = list(self._tabs)
        for tab in tabs:
            if self._is_closed.is_set():
                return
            if not tab.may_listen():
                tab.end()

    def _take(self, topic: Topic, seen: Objects) -> None:
        known = {} if topic.is_stream else self._known.get(topic.name, {})
        changed = [data for key, data in seen.items() if known.get(key) != data]
        gone = [key for key in known if key not in seen]
        if not topic.is_stream:
            self._known[topic.name] = seen
        if changed or gone:
            self._publish(
                topic.name, b'{"set":[%b],"gone":%b}' % (b",".join(changed), msgspec.json.encode(gone))
            )

    def _publish(self, topic: str, data: bytes) -> None:
        self._number += 1
        event = Event(self._number, topic, data)
        self._events.append(event)
        encoded = self._encoded(event)
        for tab in self._tabs:
            if topic in tab.topics:
                tab.tell(encoded)

    def _encoded(self, event: Event) -> bytes:
        return b"event: %b\nid: %b-%d\ndata: %b\n\n" % (
            event.topic.encode(),
            self._mark.encode(),
            event.number,
            event.data,
        )
