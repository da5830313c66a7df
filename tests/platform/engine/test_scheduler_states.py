"""Scheduler and block pool under any order of events, with the contents of every block followed.

Steps are collected late, as with a runner that keeps two in flight; some fail.
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
from trivet.sampling_params import SamplingParams

SHARED = [[9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7], [9, 8, 7, 6, 1, 1, 1, 1, 1, 1, 1, 1]]


@dataclass(frozen=True)
class Wish:
    """A request to come."""

    prompt: list[int]
    max_tokens: int
    priority: int
    salt: str


WISHES = st.builds(
    Wish,
    prompt=st.builds(
        lambda shared, count, own: shared[:count] + own,
        st.sampled_from(SHARED),
        st.integers(0, 12),
        st.lists(st.integers(1, 2), min_size=1, max_size=8),
    ),
    max_tokens=st.integers(1, 9),
    priority=st.integers(0, 1),
    salt=st.sampled_from(["", "", "", "salt"]),
)


@dataclass
class Submitted:
    """A step in flight and what it wrote, for the case that it fails."""

    number: int
    parts: list[Scheduled]
    places: list[tuple[int, int]] = field(default_factory=list)  # block and offset


class Scheduling(RuleBasedStateMachine):
    """The scheduler's owner in small: it adds, steps, collects, aborts and loses steps."""

    @initialize(
        num_blocks=st.integers(4, 14),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 20),
        caches=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, caches: bool) -> None:
        self.budget = max(budget, max_num_seqs)
        self.capacity = (num_blocks - 1) * block_size
        self.pool = BlockPool(num_blocks, block_size, max_num_seqs, self.capacity)
        self.scheduler = Scheduler(
            self.pool, max_num_seqs=max_num_seqs, token_budget=self.budget, enable_prefix_caching=caches
        )
        self.contents: dict[tuple[int, int], object] = {}  # block and offset: the token written last
        self.newest_in: dict[int, Sequence] = {}  # slot: who drew there last
        self.in_flight: deque[Submitted] = deque()
        self.sequences: list[Sequence] = []
        self.num_steps = 0

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=4))
    def add(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            prompt = wish.prompt[: self.capacity - 1]
            sequence = Sequence(
                str(len(self.sequences)),
                prompt,
                SamplingParams(),
                priority=wish.priority,
                cache_salt=wish.salt,
            )
            sequence.arrival = len(self.sequences)
            sequence.max_total_tokens = min(len(prompt) + wish.max_tokens, self.capacity)
            self.sequences.append(sequence)
            self.scheduler.waiting.push(sequence)

    @rule(count=st.integers(1, 8), depth=st.integers(1, 2))
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
        for part in parts:
            self.check_new_token(part)
            step.places += self.check_and_write(part)
        self.scheduler.submitted(parts, self.num_steps)
        for part in parts:
            part.sequence.first_scheduled_s = 1.0
        self.in_flight.append(step)

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
        for step in self.in_flight:
            self.scheduler.take_back(step.parts)
            self.contents.update(dict.fromkeys(step.places, "undefined"))
        self.in_flight.clear()

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
        running, waiting = self.scheduler.running, self.scheduler.waiting
        assert [s.order for s in running] == sorted(s.order for s in running)
        assert len({s.slot for s in running}) == len(running)
        for sequence in self.sequences:
            assert (sequence in running) == (sequence.state is SequenceState.RUNNING)
            assert (sequence in waiting) == (sequence.state is SequenceState.WAITING)
            if sequence.state is SequenceState.RUNNING:
                held = (self.pool.table[sequence.slot] > 0).sum() * self.pool.block_size
                assert held >= sequence.num_computed_tokens
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
        self.pool.reset_cache()
        assert self.pool.num_free == self.pool.num_usable


TestScheduling = pytest.mark.timeout(900)(Scheduling.TestCase)  # a failure is shrunk, which takes minutes
TestScheduling.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
