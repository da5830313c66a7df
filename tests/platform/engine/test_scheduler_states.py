"""Scheduler and block pool under any order of events, with the contents of every block followed.

Steps are collected late, as with a runner that keeps two in flight; some fail. Preempted sequences may be
swapped to host blocks, whose contents are followed as well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trivet.engine.block_pool import BlockPool
from trivet.engine.scheduler import Scheduled, Scheduler
from trivet.engine.sequence import Sequence, SequenceState
from trivet.engine.swap_space import SwapCosts, SwapSpace
from trivet.engine.waiting_queue import AGEING_S
from trivet.sampling_params import SamplingParams

SHARED = [[9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7], [9, 8, 7, 6, 1, 1, 1, 1, 1, 1, 1, 1]]


@dataclass(frozen=True)
class Wish:
    """A request to come."""

    prompt: list[int]
    max_tokens: int
    priority: int
    key: str
    salt: str


KEY_CLASSES = {"": 0, "a": 0, "b": 1}  # the most urgent that each may have
COPY_S, COMPUTE_S = 1.0, 2.0  # so that short sequences are computed again and long ones swapped
WISHES = st.builds(
    Wish,
    prompt=st.builds(
        lambda shared, count, own: shared[:count] + own,
        st.sampled_from(SHARED),
        st.integers(0, 12),
        st.lists(st.integers(1, 2), min_size=1, max_size=8),
    ),
    max_tokens=st.sampled_from([9, 15, 6, 1, 25]),  # the first is drawn most
    priority=st.integers(0, 2),
    key=st.sampled_from(["", "", "a", "b"]),
    salt=st.sampled_from(["", "", "", "salt"]),
)


@dataclass
class Submitted:
    """A step in flight and what it wrote, for the case that it fails."""

    number: int
    parts: list[Scheduled]
    places: list[tuple[int, int]] = field(default_factory=list)  # block and offset
    host_blocks: list[int] = field(default_factory=list)  # that its copies wrote


class Clock:
    """Time that passes only when a rule says so."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Scheduling(RuleBasedStateMachine):
    """The scheduler's owner in small: it adds, steps, collects, aborts and loses steps."""

    @initialize(
        num_blocks=st.sampled_from([6, 8, 4, 12]),
        block_size=st.sampled_from([4, 2, 1]),
        max_num_seqs=st.sampled_from([4, 3, 5, 1]),
        budget=st.sampled_from([20, 7, 1]),
        caches=st.booleans(),
        num_host_blocks=st.sampled_from([5, 0, 30, 2]),
        wishes=st.lists(WISHES, min_size=3, max_size=8),
        num_turns=st.sampled_from([9, 14, 5, 1]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        caches: bool,
        num_host_blocks: int,
        wishes: list[Wish],
        num_turns: int,
    ) -> None:
        """With a crowd and its first turns: most runs are short, and shall not end before it is full."""
        self.budget = max(budget, max_num_seqs)
        self.capacity = (num_blocks - 1) * block_size
        self.pool = BlockPool(num_blocks, block_size, max_num_seqs, self.capacity)
        costs = SwapCosts(COPY_S, COMPUTE_S)
        self.swap = SwapSpace(num_host_blocks, block_size, 1, costs) if num_host_blocks else None
        self.clock = Clock()
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs=max_num_seqs,
            token_budget=self.budget,
            enable_prefix_caching=caches,
            clock=self.clock,
            swap=self.swap,
        )
        self.watch_admissions()
        self.host_contents: dict[tuple[int, int], object] = {}
        self.contents: dict[tuple[int, int], object] = {}  # block and offset: the token written last
        self.newest_in: dict[int, Sequence] = {}  # slot: who drew there last
        self.in_flight: deque[Submitted] = deque()
        self.sequences: list[Sequence] = []
        self.num_steps = 0
        self.add(wishes)
        self.turn(num_turns, 2)

    def watch_admissions(self) -> None:
        """Nobody overtakes its like, nor a more urgent class, but on the share of the less urgent."""
        queue = self.scheduler.waiting
        admit = queue.admit

        def checked(sequence: Sequence) -> None:
            waiting = [one for one in self.sequences if one in queue]
            most_urgent = min(one.priority_class for one in waiting)
            if sequence.priority_class > most_urgent:
                assert sequence.max_total_tokens <= queue._owed_tokens
            for one in waiting:
                is_like = (one.key, one.priority_class) == (sequence.key, sequence.priority_class)
                resumed = queue._classes[one.priority_class].resumed
                is_resumed = any(entry[1] is one for entry in resumed)
                if is_like and one.arrival < sequence.arrival:
                    assert sequence.first_scheduled_s is not None, "overtaken by a new one"
                    assert not is_resumed, "preempted ones keep their order"
            admit(sequence)

        queue.admit = checked  # type: ignore[method-assign]

    @rule(quarters=st.integers(1, 50))
    def wait(self, quarters: int) -> None:
        """Those who wait become more urgent. Quarters of a second, because they add up without rounding."""
        self.clock.now_s += quarters / 4
        self.scheduler.waiting.head()
        for sequence in self.sequences:
            if sequence in self.scheduler.waiting:
                lifted = int((self.clock.now_s - sequence.arrival_s) / AGEING_S)
                oldest = max(sequence.key_class, sequence.lowest_class - lifted)
                assert oldest <= sequence.priority_class <= sequence.lowest_class

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=4))
    def add(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            prompt = wish.prompt[: self.capacity - 1]
            sequence = Sequence(
                str(len(self.sequences)),
                prompt,
                SamplingParams(),
                priority=wish.priority,
                key=wish.key,
                key_class=KEY_CLASSES[wish.key],
                cache_salt=wish.salt,
            )
            sequence.arrival, sequence.arrival_s = len(self.sequences), self.clock.now_s
            sequence.max_total_tokens = min(len(prompt) + wish.max_tokens, self.capacity)
            self.sequences.append(sequence)
            self.scheduler.waiting.push(sequence)

    @rule(count=st.integers(1, 12), depth=st.integers(1, 2))
    def turn(self, count: int, depth: int) -> None:
        """Turns of the loop with so many steps in flight."""
        for _ in range(count):
            while len(self.in_flight) >= depth:
                self.collect()
            self.submit()
            self.books_agree()

    def submit(self) -> None:
        waiting_before, running_before = len(self.scheduler.waiting), len(self.scheduler.running)
        parts = self.scheduler.schedule()
        if not parts:
            is_busy = bool(self.in_flight) or waiting_before + running_before == 0
            assert is_busy, "there is work, nothing is in flight and nothing is scheduled"
            return
        self.num_steps += 1
        assert sum(part.num_tokens for part in parts) <= self.scheduler.token_budget
        lengths = [part.num_tokens for part in parts]
        assert lengths == sorted(lengths)
        assert len({part.slot for part in parts}) == len(parts)
        step = Submitted(self.num_steps, parts)
        self.carry_copies(step)
        for part in parts:
            self.check_new_token(part)
            step.places += self.check_and_write(part)
        self.scheduler.submitted(parts, self.num_steps)
        for part in parts:
            part.sequence.first_scheduled_s = 1.0
        self.in_flight.append(step)

    def carry_copies(self, step: Submitted) -> None:
        """Before the step's forward, in order; all sources of one before its targets."""
        for copy in self.swap.take_copies(step.number) if self.swap else ():
            source = self.host_contents if copy.from_host else self.contents
            target = self.host_contents if copy.to_host else self.contents
            size = self.pool.block_size
            moved = {
                (int(new), offset): source.get((int(old), offset), "nothing")
                for old, new in copy.pairs
                for offset in range(size)
            }
            target.update(moved)
            if copy.to_host:
                step.host_blocks += copy.pairs[:, 1].tolist()
            else:
                step.places += list(moved)

    def check_new_token(self, part: Scheduled) -> None:
        """A token that the host has not seen can only be read where it was drawn."""
        assert part.num_tokens >= 1
        if part.start + part.num_tokens > len(part.sequence.token_ids):
            assert self.newest_in[part.slot] is part.sequence
        if part.draws:
            self.newest_in[part.slot] = part.sequence

    def check_and_write(self, part: Scheduled) -> list[tuple[int, int]]:
        """What stands before the part in its blocks is its own prefix; then it writes."""
        sequence, size = part.sequence, self.pool.block_size
        blocks = self.pool.table[part.slot].tolist()
        identity = (sequence.cache_salt,)
        for position in range(part.start):
            found = self.contents[blocks[position // size], position % size]
            assert found == self.written(sequence, position, identity), "another's KV"
        places = []
        for position in range(part.start, part.start + part.num_tokens):
            places.append((blocks[position // size], position % size))
            assert places[-1][0] > 0
            self.contents[places[-1]] = self.written(sequence, position, identity)
        assert part.draws == (part.start + part.num_tokens == len(sequence.token_ids) + self.pending(part))
        return places

    def written(self, sequence: Sequence, position: int, identity: tuple[str]) -> object:
        """KV of a position is a function of all tokens up to it; a token that is not known yet is 5."""
        known = sequence.token_ids[: position + 1]
        return (identity, tuple(known + [5] * (position + 1 - len(known))))

    def pending(self, part: Scheduled) -> int:
        """Tokens that were on their way when the part was scheduled."""
        return part.sequence.num_pending_tokens - part.draws

    def collect(self) -> None:
        step = self.in_flight.popleft()
        self.pool.confirm(step.number)
        for part in step.parts:
            sequence = part.sequence
            if part.draws and sequence.state is not SequenceState.FINISHED:
                sequence.num_pending_tokens -= 1
                sequence.token_ids.append(5)
                if len(sequence.token_ids) >= sequence.max_total_tokens:
                    self.scheduler.finish(sequence)

    @rule()
    def lose(self) -> None:
        """The oldest step fails, so what is behind it does too; what they wrote is undefined."""
        if self.swap is not None and self.in_flight:
            self.swap.withdraw(self.in_flight[0].number)
        for step in self.in_flight:
            self.scheduler.take_back(step.parts)
            self.contents.update(dict.fromkeys(step.places, "undefined"))
            for block in step.host_blocks:
                lost = {(block, offset): "undefined" for offset in range(self.pool.block_size)}
                self.host_contents.update(lost)
        self.in_flight.clear()

    @rule()
    def lose_a_swap(self) -> None:
        """The same, with copies to the host on the way, if that comes about."""
        for _ in range(12):
            self.turn(1, 2)
            if any(step.host_blocks for step in self.in_flight):
                break
        self.lose()

    @rule(data=st.data(), is_suspect=st.booleans())
    def abort(self, data: st.DataObject, is_suspect: bool) -> None:
        living = [s for s in self.sequences if s.state is not SequenceState.FINISHED]
        if living:
            self.scheduler.finish(data.draw(st.sampled_from(living)), is_suspect=is_suspect)

    @invariant()
    def books_agree(self) -> None:
        if not self.sequences:
            return
        self.pool.check_integrity()
        if self.swap is not None:
            self.swap.check_integrity()
        queue = self.scheduler.waiting
        keys = {one.key for one in self.sequences if one.state is not SequenceState.FINISHED}
        assert set(queue._accounts) == keys
        assert len(queue) == sum(members.num_members for members in queue._classes.values())
        running, waiting = self.scheduler.running, self.scheduler.waiting
        assert [s.order for s in running] == sorted(s.order for s in running)
        assert len({s.slot for s in running}) == len(running)
        for sequence in self.sequences:
            assert (sequence in running) == (sequence.state is SequenceState.RUNNING)
            assert (sequence in waiting) == (sequence.state is SequenceState.WAITING)
            if sequence.state is SequenceState.RUNNING:
                held = (self.pool.table[sequence.slot] > 0).sum() * self.pool.block_size
                assert 0 <= held - sequence.num_computed_tokens < self.pool.block_size
            elif sequence.state is SequenceState.WAITING:
                assert sequence.num_computed_tokens == 0
        if not running:
            assert self.pool.usage == 0

    def teardown(self) -> None:
        """Everything that is left finishes, and every block comes back."""
        if not hasattr(self, "pool"):
            return
        for _ in range(5000):
            while self.in_flight:
                self.collect()
            if not self.scheduler.running and not self.scheduler.waiting:
                break
            self.submit()
        assert all(s.state is SequenceState.FINISHED for s in self.sequences)
        assert self.swap is None or self.swap.usage == 0
        self.pool.reset_cache()
        assert self.pool.num_free == self.pool.num_usable


TestScheduling = pytest.mark.timeout(900)(Scheduling.TestCase)  # a failure is shrunk, which takes minutes
TestScheduling.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
