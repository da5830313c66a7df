"""Sequences that wait for admission: the most urgent class first, then fairly by key, then by arrival.

Classes are strict but for `LESS_URGENT_SHARE` of the tokens, so that none starves. Waiting lifts a
sequence by a class each `AGEING_S`, at most to its key's class: a key that floods the queue cannot age
past the others. Within a class the keys take turns by deficit round robin over tokens (Shreedhar and
Varghese, 1995); as nobody knows how long an answer will be, a key is charged for what its sequences
compute, when they do, and pays a debt by missing turns (as in Sheng et al., OSDI 2024). Preempted
sequences go first in their class: they have had their turn.

Nothing here takes longer because many are waiting: heaps, entries removed lazily.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from trivet.engine.key_account import KeyAccount
from trivet.engine.queue_pace import QueuePace
from trivet.engine.sequence import Sequence

AGEING_S = 5.0
QUANTUM_TOKENS = 64  # a key's turn; small, so that a newcomer's comes soon
LESS_URGENT_SHARE = 1 / 16
MAX_LIFTS = 64  # a turn of the loop; the rest is lifted with the next
MAX_LOOKED_AT = 16  # keys, for one that has nothing running
SPARE_ENTRIES = 64  # stale ones that may stay before the heaps are made anew

Entry = tuple[int, Sequence]  # arrival; unique, so sequences are never compared


@dataclass(slots=True)
class _Class:
    """Those of one class."""

    num_members: int = 0
    resumed: list[Entry] = field(default_factory=list)  # a heap: preempted ones
    lanes: dict[KeyAccount, list[Entry]] = field(default_factory=dict)  # heaps
    turns: deque[KeyAccount] = field(default_factory=deque)  # one a lane; the leftmost is next
    current: KeyAccount | None = None  # whose turn it is, while it has credit
    ahead: KeyAccount | None = None  # goes before that, while it has nothing running

    def heaps(self) -> Iterator[list[Entry]]:
        yield self.resumed
        yield from self.lanes.values()


class WaitingQueue:
    """See above. `clock` gives monotonic seconds, those of `Sequence.arrival_s`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_tokens = 0  # prompt and completion tokens that its members may still need
        self.pace = QueuePace(clock)
        self._clock = clock
        self._classes: dict[int, _Class] = {}
        self._class_of: dict[Sequence, int] = {}
        self._lifts: list[tuple[float, int, Sequence, int]] = []  # a heap: when, arrival, who, from where
        self._accounts: dict[str, KeyAccount] = {}  # of keys that have a sequence here or running
        self._num_entries = 0
        self._owed_tokens = 0.0  # to the less urgent

    def __len__(self) -> int:
        return len(self._class_of)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._class_of

    def num_waiting(self, key: str) -> int:
        """Of one key."""
        account = self._accounts.get(key)
        return account.num_waiting if account else 0

    @property
    def has_one_key(self) -> bool:
        return len(self._accounts) == 1

    def num_keys(self, key: str) -> int:
        """Keys with a sequence that waits or runs, and this one."""
        return len(self._accounts) + (key not in self._accounts)

    # ---- coming and going ----

    def push(self, sequence: Sequence) -> None:
        """A new sequence. It counts for its key until `leave`."""
        if not self._class_of:  # while nobody waited nobody was kept waiting: what was used is not owed
            for account in self._accounts.values():
                account.credit = 0
        if sequence.key not in self._accounts:
            self._accounts[sequence.key] = KeyAccount(sequence.key)
        sequence.account = self._accounts[sequence.key]
        sequence.account.num_sequences += 1
        self._enter(sequence, is_resumed=False)

    def put_back(self, sequence: Sequence, *, is_resumed: bool = True) -> None:
        """A preempted sequence: before the new ones of its class, in order of arrival.

        Not `is_resumed`: before the new ones of its key only, when that has its turn.
        """
        self._enter(sequence, is_resumed=is_resumed)

    def admit(self, sequence: Sequence) -> None:
        """The head starts to run."""
        priority_class = self._class_of[sequence]
        self.remove(sequence)
        if sequence.first_scheduled_s is None:
            self.pace.admitted()
        is_most_urgent = priority_class <= min(self._classes, default=priority_class)
        if is_most_urgent and any(other > priority_class for other in self._classes):
            self._owed_tokens += LESS_URGENT_SHARE * sequence.max_total_tokens
        else:
            self._owed_tokens = 0.0

    def remove(self, sequence: Sequence) -> None:
        """Raises: KeyError where it does not wait."""
        self._drop_from_class(sequence)
        self.num_tokens -= sequence.max_total_tokens
        sequence.account.num_waiting -= 1
        if self._num_entries + len(self._lifts) > 4 * len(self._class_of) + SPARE_ENTRIES:
            self._rebuild()

    def leave(self, sequence: Sequence) -> None:
        """The end of a sequence that does not wait any more; a key without sequences is forgotten."""
        account = sequence.account
        account.num_sequences -= 1
        if account.num_sequences == 0:
            del self._accounts[account.key]

    def _enter(self, sequence: Sequence, *, is_resumed: bool) -> None:
        if not self._class_of:
            self.pace.restart()
        self.num_tokens += sequence.max_total_tokens
        sequence.account.num_waiting += 1
        lifted = int((self._clock() - sequence.arrival_s) / AGEING_S)
        self._put(sequence, max(sequence.key_class, sequence.lowest_class - lifted), is_resumed=is_resumed)

    def _put(self, sequence: Sequence, priority_class: int, *, is_resumed: bool) -> None:
        members = self._classes.setdefault(priority_class, _Class())
        members.num_members += 1
        self._class_of[sequence] = sequence.priority_class = priority_class
        heap = members.resumed
        if not is_resumed:
            if sequence.account not in members.lanes:
                members.turns.append(sequence.account)
            heap = members.lanes.setdefault(sequence.account, [])
        heapq.heappush(heap, (sequence.arrival, sequence))
        self._num_entries += 1
        if priority_class > sequence.key_class:
            due_s = sequence.arrival_s + AGEING_S * (sequence.lowest_class - priority_class + 1)
            heapq.heappush(self._lifts, (due_s, sequence.arrival, sequence, priority_class))

    def _drop_from_class(self, sequence: Sequence) -> None:
        priority_class = self._class_of.pop(sequence)
        members = self._classes[priority_class]
        members.num_members -= 1
        if members.num_members == 0:
            self._num_entries -= sum(len(heap) for heap in members.heaps())
            del self._classes[priority_class]

    # ---- who is next ----

    def head(self) -> Sequence | None:
        """The next one to be admitted."""
        self._lift_aged()
        if not self._classes:
            return None
        urgent, *others = sorted(self._classes)
        chosen = self._first_of(urgent)
        if others and self._owed_tokens > 0:
            heads = [self._first_of(other) for other in others]
            oldest = min(heads, key=lambda sequence: sequence.arrival)
            if oldest.max_total_tokens <= self._owed_tokens:
                return oldest
        return chosen

    def put_ahead(self, priority_class: int) -> Sequence | None:
        """Make the first sequence of a key that has nothing running the head, if nobody was preempted before.

        Args:
            priority_class: that of the sequence which may make way for it; it is not for less urgent ones.
        """
        urgent = min(self._classes, default=priority_class + 1)
        if urgent > priority_class or self._top(self._classes[urgent].resumed, urgent) is not None:
            return None
        members = self._classes[urgent]
        for account in islice(members.turns, MAX_LOOKED_AT):
            first = self._top(members.lanes[account], urgent)
            if first is not None and account.num_running == 0:
                members.ahead = account
                return first
        return None

    def _lift_aged(self) -> None:
        now = self._clock()
        for _ in range(MAX_LIFTS):
            if not self._lifts or self._lifts[0][0] > now:
                return
            _, _, sequence, priority_class = heapq.heappop(self._lifts)
            if self._class_of.get(sequence) == priority_class:
                self._drop_from_class(sequence)
                is_resumed = sequence.first_scheduled_s is not None
                self._put(sequence, priority_class - 1, is_resumed=is_resumed)

    def _first_of(self, priority_class: int) -> Sequence:
        members = self._classes[priority_class]
        resumed = self._top(members.resumed, priority_class)
        if resumed is not None:
            return resumed
        ahead, current = members.ahead, members.current
        if ahead is not None and ahead.num_running > 0:
            ahead = None
        if current is not None and current.credit <= 0:
            current = None
        for account in (ahead, current):
            if account in members.lanes:
                first = self._top(members.lanes[account], priority_class)
                if first is not None:
                    return first
        return self._next_turn(members, priority_class)

    def _next_turn(self, members: _Class, priority_class: int) -> Sequence:
        """Of a class that has a member, and no resumed one."""
        turns, num_visited = members.turns, 0
        while True:
            if num_visited == len(turns):  # all are in debt
                _let_rounds_pass(turns)
            account = turns[0]
            first = self._top(members.lanes[account], priority_class)
            if first is None:
                turns.popleft()
                del members.lanes[account]
                account.credit = min(account.credit, 0)  # turns are not saved up
                continue
            turns.rotate(-1)
            account.credit += QUANTUM_TOKENS
            if account.credit > 0:
                members.current = account
                return first
            num_visited += 1

    def _top(self, heap: list[Entry], priority_class: int) -> Sequence | None:
        while heap and self._class_of.get(heap[0][1]) != priority_class:
            heapq.heappop(heap)
            self._num_entries -= 1
        return heap[0][1] if heap else None

    def _rebuild(self) -> None:
        """Drop the entries of those that have gone, mostly aborted ones that never came to the front."""
        self._num_entries = 0
        for priority_class, members in self._classes.items():
            for heap in members.heaps():
                heap[:] = [entry for entry in heap if self._class_of.get(entry[1]) == priority_class]
                heapq.heapify(heap)
                self._num_entries += len(heap)
            members.lanes = {account: heap for account, heap in members.lanes.items() if heap}
            members.turns = deque(account for account in members.turns if account in members.lanes)
        self._lifts = [entry for entry in self._lifts if self._class_of.get(entry[2]) == entry[3]]
        heapq.heapify(self._lifts)


def _let_rounds_pass(turns: deque[KeyAccount]) -> None:
    """As many at once as the key with the smallest debt needs, but for the last."""
    num_rounds = -max(account.credit for account in turns) // QUANTUM_TOKENS
    for account in turns:
        account.credit += num_rounds * QUANTUM_TOKENS
