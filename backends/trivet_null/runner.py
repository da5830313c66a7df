"""A runner whose queue is carried out as late as the contract allows: when a step is collected."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import (
    ON_DEVICE,
    Batch,
    Feature,
    MemoryPart,
    MemoryPlan,
    PoolKind,
    RunnerConfig,
    Sampling,
    StepOutput,
)
from trivet.engine.sampler import sample_pieces
from trivet.errors import DeviceLost, DoesNotFit, OutOfMemory, Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_null.backend import NullOptions, free_bytes, logits_rows
from trivet_null.batch_checks import Unchanged, check_batch, check_sampling
from trivet_null.model import NullModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.contract import Float32, Int32

UNWRITTEN = -2  # in a KV slot; reading it is a fault of the core
IS_NAN = -1  # in place of a state


@dataclass(slots=True)
class _Step:
    """A step on its way through the queue."""

    batch: Batch
    ready_s: float  # when the device would be done with it
    guards: list[Unchanged]
    sampling: Sampling | None = None
    states: NDArray[np.int64] | None = None  # [R] once its forward has been carried out


class NullRunner:
    """The contract's runner over `NullModel`; the KV cache holds the tokens themselves."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.HOST_KV})

    def __init__(self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, options: NullOptions) -> None:
        self.max_in_flight = options.max_in_flight
        self._options = options
        self._plan = plan
        self._max_num_seqs = config.max_num_seqs
        self._vocab_size = spec.vocab_size
        self._num_tokens = spec.num_tokens
        self._hidden_size = spec.hidden_size
        self._logits_rows = logits_rows(config)
        self._model: NullModel | None = None
        self._logits: Float32 = np.empty((0, 0), np.float32)
        self._kv: list[Int32] = []  # one array [num_blocks, block_size] a group
        self._host_kv: list[Int32] = []  # [num_host_blocks, block_size] a group
        self._newest: Int32 = np.full(config.max_num_seqs, UNWRITTEN, np.int32)  # of each slot
        self._queue: deque[_Step] = deque()
        self._last_step = 0
        self._busy_until_s = 0.0

    # ---- start and end ----

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """No weight is read; the progress says that all are."""
        self._model = NullModel(self._num_tokens)
        on_progress(weights.size_bytes, weights.size_bytes)

    def allocate_kv(self) -> None:
        """As the contract."""
        size = self._plan.kv.block_size
        num_host_blocks = self._plan.num_host_blocks
        num_blocks = sum(self._plan.num_blocks) + num_host_blocks * len(self._plan.num_blocks)
        needed, free = num_blocks * size * 4, free_bytes()
        if needed > free:
            raise DoesNotFit(
                f"the KV cache needs {needed} bytes and {free} are free; lower num_gpu_blocks_override"
            )
        self._kv = [np.full((count, size), UNWRITTEN, np.int32) for count in self._plan.num_blocks]
        self._host_kv = [np.full((num_host_blocks, size), UNWRITTEN, np.int32) for _ in self._kv]

    def warm_up(self) -> None:
        """The logits buffer."""
        self._logits = np.zeros((self._logits_rows, self._num_tokens), np.float32)

    def host_buffer(self, num_int32: int) -> Int32:
        """Ordinary memory."""
        return np.zeros(num_int32, np.int32)

    def memory(self) -> tuple[MemoryPart, ...]:
        """As the contract."""
        return (
            MemoryPart("weights", self._model.size_bytes if self._model else 0),
            MemoryPart("kv", sum(kv.nbytes for kv in self._kv)),
            MemoryPart("logits", self._logits.nbytes),
            MemoryPart("host_kv", sum(kv.nbytes for kv in self._host_kv)),
        )

    def notices(self) -> tuple[str, ...]:
        """As asked for."""
        return (self._options.notice,) if self._options.notice else ()

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """Not offered."""
        raise Unsupported("the null backend has no adapters")

    def unload_adapter(self, slot: int) -> None:
        """Not offered."""
        raise Unsupported("the null backend has no adapters")

    def close(self) -> None:
        """As the contract."""
        self._model, self._kv, self._logits = None, [], np.empty((0, 0), np.float32)
        self._queue.clear()

    # ---- steps ----

    def forward(self, batch: Batch) -> None:
        """As the contract; checks the core's half of it."""
        assert batch.step > self._last_step, "steps count up"
        assert len(self._queue) < self.max_in_flight, "no more steps in flight than the runner takes"
        assert all(step.sampling for step in self._queue), "sample(n) is queued before forward(n + 1) is"
        check_batch(batch, self._plan, self._max_num_seqs, self._vocab_size)
        self._last_step = batch.step
        self._busy_until_s = max(time.monotonic(), self._busy_until_s) + self._options.step_ms / 1000
        self._queue.append(_Step(batch, self._busy_until_s, [Unchanged(batch)]))

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract."""
        newest = self._queue[-1]
        assert newest.batch.step == step, "sample follows its forward"
        assert newest.sampling is None, "sample comes once a step"
        check_sampling(newest.batch, sampling)
        newest.sampling = sampling
        newest.guards.append(Unchanged(sampling))

    def collect(self, step: int) -> StepOutput:
        """Carry out all that stands before this step in the queue, and this step."""
        oldest = self._queue[0]
        assert oldest.batch.step == step, "steps are collected in order"
        assert oldest.sampling is not None, "a step is collected after its sample"
        if (wait_s := oldest.ready_s - time.monotonic()) > 0:
            time.sleep(wait_s)
        for guard in oldest.guards:
            guard.check()
        if 0 < self._options.device_lost_step <= step:
            raise DeviceLost(f"the null device was told to fail in step {self._options.device_lost_step}")
        if step in self._options.out_of_memory_steps:
            self._queue.clear()
            raise OutOfMemory(f"the null device was told to run out of memory in step {step}")
        self._queue.popleft()
        return self._carry_out(oldest.batch, oldest.sampling)

    def _carry_out(self, batch: Batch, sampling: Sampling) -> StepOutput:
        self._copy_blocks(batch)
        self._write_kv(batch)
        states = self._read_states(batch)
        output = sample_pieces(
            self._logits_pieces(states), sampling, batch.row_seqs, len(batch.slots), batch.step
        )
        drawing = np.flatnonzero(output.num_tokens)
        rows = np.flatnonzero(sampling.draws)
        last = np.searchsorted(batch.row_seqs[rows], drawing) + output.num_tokens[drawing] - 1
        self._newest[batch.slots[drawing]] = output.token_ids[rows[last]]
        return replace(output, pooled=self._pool(batch), device_time_s=self._options.step_ms / 1000)

    def _copy_blocks(self, batch: Batch) -> None:
        for copy in batch.copies:
            assert not (copy.from_host and copy.to_host), "one side of a copy is the device"
            sources, targets = copy.pairs.T
            source = self._host_kv if copy.from_host else self._kv
            target = self._host_kv if copy.to_host else self._kv
            target[copy.group][targets] = source[copy.group][sources]

    def _write_kv(self, batch: Batch) -> None:
        block_size = self._plan.kv.block_size
        owner = np.repeat(np.arange(len(batch.slots)), np.diff(batch.query_start_loc))
        tokens = np.where(batch.token_ids == ON_DEVICE, self._newest[batch.slots[owner]], batch.token_ids)
        assert (tokens != UNWRITTEN).all(), "the slot has no newest token"
        for kv, table in zip(self._kv, batch.block_tables, strict=True):
            blocks = table[owner, batch.positions // block_size]
            kv[blocks, batch.positions % block_size] = tokens

    def _read_states(self, batch: Batch) -> NDArray[np.int64]:
        """[R] what the KV blocks say about each row."""
        assert self._model is not None, "load comes first"
        states = np.zeros(len(batch.logits_rows), np.int64)
        bounds = np.searchsorted(batch.row_seqs, np.arange(len(batch.slots) + 1))
        for index in np.unique(batch.row_seqs):
            tokens = self._tokens_of(batch, int(index))
            rows = slice(bounds[index], bounds[index + 1])
            positions = batch.positions[batch.logits_rows[rows]]
            states[rows] = self._model.states(tokens, positions)
            if self._options.nan_token >= 0:
                is_nan = np.cumsum(tokens == self._options.nan_token) > 0
                states[rows] = np.where(is_nan[positions], IS_NAN, states[rows])
        return states

    def _pool(self, batch: Batch) -> Float32 | None:
        """[S, hidden_size]"""
        if batch.pooling is None:
            return None
        assert self._model is not None, "load comes first"
        pooled = np.zeros((len(batch.slots), self._hidden_size), np.float32)
        for index in np.flatnonzero(batch.pooling):
            first, stop = batch.query_start_loc[index : index + 2]
            first = stop - 1 if batch.pooling[index] == PoolKind.LAST else first
            tokens, positions = self._tokens_of(batch, int(index)), batch.positions[first:stop]
            hidden = self._model.hidden(self._model.states(tokens, positions), self._hidden_size)
            pooled[index] = hidden.sum(axis=0)
            if (
                self._options.nan_token >= 0
                and (tokens[: positions[-1] + 1] == self._options.nan_token).any()
            ):
                pooled[index] = np.nan
        return pooled

    def _tokens_of(self, batch: Batch, index: int) -> Int32:
        """[seq_len] the sequence's tokens out of its blocks; every group must hold the same."""
        length = int(batch.seq_lens[index])
        width = -(-length // self._plan.kv.block_size)
        contents = [
            kv[table[index, :width]].reshape(-1)[:length]
            for kv, table in zip(self._kv, batch.block_tables, strict=True)
        ]
        assert (contents[0] != UNWRITTEN).all(), "a KV slot is read before it is written"
        assert all(np.array_equal(contents[0], other) for other in contents[1:]), "KV groups differ"
        return contents[0]

    def _logits_pieces(self, states: NDArray[np.int64]) -> Iterator[Float32]:
        assert self._model is not None, "load comes first"
        for first in range(0, len(states), self._logits_rows):
            piece = states[first : first + self._logits_rows]
            for row, state in enumerate(piece):
                self._logits[row] = np.nan if state == IS_NAN else self._model.logits(state)
            yield self._logits[: len(piece)]
