"""Host memory for the KV of preempted sequences, and whether using it pays.

What a preempted sequence had computed can be computed again, or copied to the host and back. Both are
measured: copies when the engine starts, computing while it runs. The copies of a step are carried out in
the order in which the scheduler decided them, before the step's forward, so a block that is copied away
may be given to another sequence in the same step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import Batch, BlockCopy, MemoryPlan, Runner, Sampling

if TYPE_CHECKING:
    from trivet.contract import Int32
    from trivet.engine.sequence import Sequence

MEASURED_BLOCKS = 16
SMOOTHING = 0.1  # weight of the newest step in the mean
MIN_STEP_TOKENS = 16  # smaller steps are no measure of how fast a prompt is computed


@dataclass(slots=True)
class SwapCosts:
    """Seconds. Until a prompt has been computed, that counts as free: nothing is swapped on a guess."""

    copy_s_per_block: float  # one way
    compute_s_per_token: float = 0.0

    def observe(self, batch: Batch, device_time_s: float) -> None:
        """A step that mostly computes prompts says what computing costs."""
        num_tokens = len(batch.token_ids)
        if num_tokens < MIN_STEP_TOKENS or num_tokens < 2 * len(batch.slots):
            return
        newest = device_time_s / num_tokens
        known = self.compute_s_per_token or newest
        self.compute_s_per_token = known + SMOOTHING * (newest - known)

    def swap_pays(self, num_tokens: int, num_blocks: int) -> bool:
        return 2 * num_blocks * self.copy_s_per_block < num_tokens * self.compute_s_per_token


@dataclass(slots=True)
class _Swapped:
    """The KV of a sequence's first tokens, in host blocks."""

    blocks: list[int]
    num_tokens: int
    step: int | None = None  # that carries the copies; None: the next one will


class SwapSpace:
    """Host blocks, 0 to `num_blocks` - 1, and the copies that the next step has to carry."""

    def __init__(self, num_blocks: int, block_size: int, num_groups: int, costs: SwapCosts) -> None:
        self.costs = costs
        self.num_blocks = num_blocks
        self.num_swaps = 0
        self._block_size = block_size
        self._num_groups = num_groups
        self._free = list(range(num_blocks - 1, -1, -1))
        self._swapped: dict[Sequence, _Swapped] = {}
        self._copies: list[BlockCopy] = []

    @property
    def num_sequences(self) -> int:
        """Whose KV is on the host."""
        return len(self._swapped)

    @property
    def usage(self) -> float:
        """Share of the host blocks that hold something, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def swap_out(self, sequence: Sequence, table: Int32) -> None:
        """Copy what the sequence has computed, if there is room and it pays. `table` is its block table."""
        num_tokens = sequence.num_computed_tokens
        count = -(-num_tokens // self._block_size)
        if sequence.pooling is not None or count > len(self._free):
            return  # sums over hidden states start over with the sequence
        if not self.costs.swap_pays(num_tokens, count):
            return
        blocks = [self._free.pop() for _ in range(count)]
        self._swapped[sequence] = _Swapped(blocks, num_tokens)
        self._queue(table[:count].tolist(), blocks, to_host=True)
        self.num_swaps += 1

    def num_tokens_of(self, sequence: Sequence) -> int:
        """Its first tokens whose KV is on the host."""
        swapped = self._swapped.get(sequence)
        return 0 if swapped is None else swapped.num_tokens

    def swap_in(self, sequence: Sequence, table: Int32, num_cached_tokens: int) -> int:
        """Bring back what lies behind the cached prefix. Returns the tokens whose KV `table` has then."""
        swapped = self._swapped.get(sequence)
        if swapped is None:
            return num_cached_tokens
        first, count = num_cached_tokens // self._block_size, len(swapped.blocks)
        if count > first:
            self._queue(swapped.blocks[first:], table[first:count].tolist(), to_host=False)
        self.forget(sequence)
        return max(num_cached_tokens, swapped.num_tokens)

    def forget(self, sequence: Sequence) -> None:
        """Its host blocks are free; without effect for a sequence that has none."""
        swapped = self._swapped.pop(sequence, None)
        if swapped is not None:
            self._free.extend(swapped.blocks)

    # ---- copies ----

    def take_copies(self, step: int) -> tuple[BlockCopy, ...]:
        """What the step has to carry, in order."""
        copies, self._copies = tuple(self._copies), []
        if copies:
            for swapped in self._swapped.values():
                if swapped.step is None:
                    swapped.step = step
        return copies

    def withdraw(self, step: int) -> None:
        """This step and what was decided after it never happened: those sequences are computed again."""
        self._copies.clear()
        lost = [one for one, swapped in self._swapped.items() if swapped.step is None or swapped.step >= step]
        for sequence in lost:
            self.forget(sequence)

    def check_integrity(self) -> None:
        """Raises: AssertionError where a host block is lost, or two have it."""
        blocks = [block for swapped in self._swapped.values() for block in swapped.blocks] + self._free
        assert sorted(blocks) == list(range(self.num_blocks)), "host blocks are lost or held twice"

    def _queue(self, sources: list[int], targets: list[int], *, to_host: bool) -> None:
        self._copies += _copies(sources, targets, self._num_groups, to_host=to_host)


def measure_copy_s(runner: Runner, plan: MemoryPlan, first_step: int) -> float:
    """Seconds a block and way, over the second of two steps that carry copies alone.

    Whatever is in the first device blocks comes back to them. Raises: OutOfMemory, DeviceLost.
    """
    count = min(MEASURED_BLOCKS, plan.num_host_blocks, min(plan.num_blocks) - 1)
    device, host = list(range(1, count + 1)), list(range(count))
    num_groups = len(plan.num_blocks)
    elapsed_s = 0.0
    for step in (first_step, first_step + 1):
        copies = (
            *_copies(device, host, num_groups, to_host=True),
            *_copies(host, device, num_groups, to_host=False),
        )
        begun_s = time.perf_counter()
        runner.forward(_batch_of(step, copies, num_groups))
        runner.sample(step, _no_sampling())
        runner.collect(step)
        elapsed_s = time.perf_counter() - begun_s
    return elapsed_s / (2 * count)


def _copies(sources: list[int], targets: list[int], num_groups: int, *, to_host: bool) -> list[BlockCopy]:
    pairs = np.array([sources, targets], np.int32).T.copy()
    return [
        BlockCopy(group, from_host=not to_host, to_host=to_host, pairs=pairs) for group in range(num_groups)
    ]


def _batch_of(step: int, copies: tuple[BlockCopy, ...], num_groups: int) -> Batch:
    empty = np.zeros(0, np.int32)
    return Batch(
        step=step,
        slots=empty,
        query_start_loc=np.zeros(1, np.int32),
        seq_lens=empty,
        block_tables=(np.zeros((0, 0), np.int32),) * num_groups,
        token_ids=empty,
        positions=empty,
        logits_rows=empty,
        row_seqs=empty,
        copies=copies,
    )


def _no_sampling() -> Sampling:
    ids, numbers = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Sampling(
        draws=np.zeros(0, np.bool_),
        target_ids=ids,
        temperature=numbers,
        top_k=ids,
        top_p=numbers,
        min_p=numbers,
        uniform=np.zeros((0, 2), np.float32),
    )
