"""Decides what the next step computes.

One token budget a step, spent on running sequences first, on those that decode before those still in
their prompt, then on waiting ones in order. A prompt that exceeds what is left of the budget goes on in
the next step. A running sequence that finds no block takes those of the last in order, which starts over
later (preemption); what it had computed is often still in the prefix cache, or waits in the swap space.
A key that has nothing running does not wait until another's sequences end: the newest of these makes way.

The cost of a step does not depend on how many wait.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from trivet.engine.block_pool import BlockPool
from trivet.engine.prefix_key import extend_block_keys
from trivet.engine.sequence import Sequence, SequenceState
from trivet.engine.swap_space import SwapSpace
from trivet.engine.waiting_queue import WaitingQueue

SPARE_SHARE = 0.01  # of the blocks, left free at an admission, so that it is not preempted at once


class Scheduled(NamedTuple):
    """A sequence's part of a step."""

    sequence: Sequence
    slot: int
    start: int  # position of its first token in this step
    num_tokens: int
    draws: bool  # the step draws its next token; false in the middle of a prompt, and if it is embedded
    first_scored: int = 0  # position of the first of its tokens whose successor, a prompt token, is scored
    num_scored: int = 0


class Scheduler:
    """Owns the sequences that wait and those that run, and moves blocks and slots between them."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        token_budget: int,
        enable_prefix_caching: bool,
        clock: Callable[[], float] = time.monotonic,
        swap: SwapSpace | None = None,
    ) -> None:
        self.waiting = WaitingQueue(clock)
        self.swap = swap
        self.running: list[Sequence] = []  # by Sequence.order
        self.token_budget = token_budget
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._pool = pool
        self._caches = enable_prefix_caching
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._spare_blocks = max(1, int(SPARE_SHARE * pool.num_usable))
        self._filling: set[bytes] = set()  # keys of the prompt blocks that this step is at
        self._submitted_step = 0

    def schedule(self) -> list[Scheduled]:
        """The next step, decodes first, then by query length; empty if nothing can be computed.

        The sequences count as computed up to there, with a pending token where they draw one.
        """
        self._filling.clear()
        self._make_way()
        self._open_chunks()
        step: list[Scheduled] = []
        budget = self._schedule_decodes(step, self.token_budget)
        budget = self._schedule_prompts(step, budget)
        self._admit(step, budget)
        step.sort(key=attrgetter("num_tokens"))
        return step

    def _make_way(self) -> None:
        """One a step, of the key that has most running, for a key that has none and waits.

        It gets its old place among those of its key, so it does not come back before the other has started.
        """
        if not self.waiting or not self.running or self.waiting.has_one_key:
            return
        victim = max(self.running, key=lambda one: (one.account.num_running, one.order))
        if victim.account.num_running == 1:
            return
        head = self.waiting.put_ahead(victim.priority_class)
        if head is None or (self._free_slots and self._has_room(head, self._find_cached(head))):
            return
        self._preempt(victim, makes_way=True)

    def _open_chunks(self) -> None:
        """Blocks for the chunks of prompts that this step will compute, and no more.

        Before anything is taken into the step: who makes way for a chunk may not be part of it.
        """
        prompts = [one for one in self.running if one.num_tokens - one.num_computed_tokens > 1]
        budget = self.token_budget - sum(map(_decodes, self.running))
        for sequence in prompts:
            if budget <= 0 or sequence.state is not SequenceState.RUNNING:  # it made way for one before it
                return
            stop = min(sequence.num_tokens, sequence.num_computed_tokens + budget)
            budget -= stop - sequence.num_computed_tokens
            if not self._pool.grow(sequence.slot, stop):
                self._preempt_for(sequence, stop)

    def _schedule_decodes(self, step: list[Scheduled], budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            index += 1
            if not _decodes(sequence):
                continue
            total = sequence.num_tokens
            if self._pool.grow(sequence.slot, total) or self._preempt_for(sequence, total):
                self._take(step, sequence, 1)
                budget -= 1
        return budget

    def _preempt_for(self, sequence: Sequence, num_tokens: int) -> bool:
        """Preempt from the end of the order until there is a block; false if that reached `sequence`."""
        while True:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
            if self._pool.grow(sequence.slot, num_tokens):
                return True

    def _schedule_prompts(self, step: list[Scheduled], budget: int) -> int:
        for sequence in self.running:
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            if budget <= 0 or remaining <= 1:
                continue
            chunk = min(budget, remaining)
            # The budget is larger than `_open_chunks` took it for where a decode has been preempted since.
            if not self._pool.grow(sequence.slot, sequence.num_computed_tokens + chunk):
                chunk = min(chunk, self._pool.num_places(sequence.slot) - sequence.num_computed_tokens)
            if chunk > 0:
                self._take(step, sequence, chunk)
                budget -= chunk
        return budget

    def _admit(self, step: list[Scheduled], budget: int) -> None:
        while budget > 0 and self._free_slots and self._pool.num_free:
            sequence = self.waiting.head()
            if sequence is None or sequence.num_pending_tokens:  # preempted; its token is on the way
                return
            cached = self._find_cached(sequence)
            if cached is None or not self._has_room(sequence, cached):
                return
            self._start(sequence, cached, budget)
            remaining = sequence.num_tokens - sequence.num_computed_tokens
            self._take(step, sequence, min(budget, remaining))
            budget -= step[-1].num_tokens

    def _has_room(self, sequence: Sequence, cached: list[int] | None) -> bool:
        spare = self._spare_blocks if self.running else 0
        return self._pool.can_open(cached or [], sequence.num_tokens, spare)

    def _find_cached(self, sequence: Sequence) -> list[int] | None:
        """Cached blocks of its prefix, never its last token's; None if the next one comes with this step."""
        if not self._shares(sequence):
            return []
        extend_block_keys(sequence, self._pool.block_size)  # others wait for what it fills, in any case
        if not sequence.can_read_cache:
            return []
        keys = sequence.block_keys[: (sequence.num_tokens - 1) // self._pool.block_size]
        cached = self._pool.find(keys)
        if len(cached) < len(keys) and keys[len(cached)] in self._filling:
            return None
        return cached

    def _shares(self, sequence: Sequence) -> bool:
        """Whether others may use its blocks: the n completions of one prompt do without a cache, too."""
        return self._caches or bool(sequence.group)

    def _start(self, sequence: Sequence, cached: list[int], budget: int) -> None:
        """Run it, with blocks for what is there of it and for its first chunk."""
        self.waiting.admit(sequence)
        sequence.slot = self._free_slots.pop()
        sequence.num_computed_tokens = len(cached) * self._pool.block_size
        num_swapped = self.swap.num_tokens_of(sequence) if self.swap is not None else 0
        stop = max(sequence.num_computed_tokens, num_swapped) + budget
        self._pool.open(sequence.slot, cached, min(sequence.num_tokens, stop))
        if self.swap is not None:
            table = self._pool.table[sequence.slot]
            sequence.num_computed_tokens = self.swap.swap_in(sequence, table, sequence.num_computed_tokens)
        sequence.num_published_blocks = len(cached)
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=attrgetter("order"))
        if sequence.first_scheduled_s is not None:
            return  # preempted before: it has been counted, and finds its own blocks
        sequence.account.credit -= sequence.num_prompt_tokens - sequence.num_computed_tokens
        if self._caches:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_cached_tokens

    def _take(self, step: list[Scheduled], sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed_tokens
        stop = start + num_tokens
        draws = stop == sequence.num_tokens and sequence.pooling is None
        first_scored = max(start, len(sequence.prompt_logprobs))
        num_scored = 0
        if sequence.num_unscored:
            num_scored = max(0, min(stop, sequence.num_prompt_tokens - 1) - first_scored)
        step.append(Scheduled(sequence, sequence.slot, start, num_tokens, draws, first_scored, num_scored))
        sequence.num_computed_tokens = stop
        sequence.num_pending_tokens += draws
        sequence.account.credit -= draws
        if num_tokens > 1 and self._shares(sequence):
            block_size = self._pool.block_size
            self._filling.update(sequence.block_keys[start // block_size : -(-stop // block_size)])

    # ---- after submission ----

    def submitted(self, step: list[Scheduled], number: int) -> None:
        """The step is queued on the runner: what it fills can be hit from the next step on."""
        self._submitted_step = number
        for part in step:
            self._publish(part.sequence)

    def _publish(self, sequence: Sequence) -> None:
        """Publish the full blocks whose tokens are known and whose KV has been submitted."""
        computed, known = sequence.num_computed_tokens, len(sequence.token_ids)
        num_full = (computed if computed < known else known) // self._pool.block_size
        first = sequence.num_published_blocks
        if num_full > first and self._shares(sequence):
            extend_block_keys(sequence, self._pool.block_size)
            keys = sequence.block_keys[first:num_full]
            self._pool.publish(sequence.slot, first, keys, self._submitted_step)
            sequence.num_published_blocks = num_full

    # ---- leaving ----

    def _preempt(self, sequence: Sequence, *, makes_way: bool = False) -> None:
        """Back to the queue; a pending token is kept."""
        self._publish(sequence)
        if self.swap is not None:
            self.swap.swap_out(sequence, self._pool.table[sequence.slot])
        self._release(sequence)
        self.waiting.put_back(sequence, is_resumed=not makes_way)
        sequence.state = SequenceState.WAITING
        self.num_preemptions += 1

    def finish(self, sequence: Sequence, *, is_suspect: bool = False) -> None:
        """The sequence's end, whatever the reason: blocks and slot are free at once.

        Args:
            is_suspect: its KV may be wrong, so the prefix cache forgets it.
        """
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
            if self.swap is not None:
                self.swap.forget(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._publish(sequence)
            self._release(sequence)
        if is_suspect:
            self._pool.withdraw(sequence.block_keys)
        self.waiting.leave(sequence)
        sequence.state = SequenceState.FINISHED

    def take_back(self, step: list[Scheduled]) -> None:
        """The step never happened: its sequences wait again, without what it promised."""
        self._pool.withdraw_unconfirmed()
        for part in step:
            sequence = part.sequence
            sequence.num_pending_tokens = 0
            if sequence.state is SequenceState.RUNNING:
                self._release(sequence)
                self.waiting.put_back(sequence)
                sequence.state = SequenceState.WAITING

    def _release(self, sequence: Sequence) -> None:
        self._pool.close(sequence.slot)
        self._free_slots.append(sequence.slot)
        self.running.remove(sequence)
        sequence.num_computed_tokens = 0


def _decodes(sequence: Sequence) -> bool:
    """Whether it draws its next token in this step: it is not in its prompt, and has room for one more."""
    total = sequence.num_tokens
    return total - sequence.num_computed_tokens == 1 and total < sequence.max_total_tokens
