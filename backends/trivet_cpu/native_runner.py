"""The native runner of the CPU: a whole step in C++, no torch in the process.

Weights are mapped, packed once into tiles for the kernels (`native_weights.py`), and the file's pages are
left to the kernel. `forward` and `sample` queue their work on a stream (`kernels/stream.h`): two steps are in
flight, and the host prepares one while the other computes; `collect` computes with the stream's threads until
its step is done. Every call into the library releases the GIL.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivet.contract import Batch, Feature, MemoryPart, MemoryPlan, Sampling, StepOutput
from trivet.errors import BackendError, DoesNotFit, OutOfMemory
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import ModelSpec
from trivet.runners.adapter_memory import PART_NAME, bank_of
from trivet.runners.pooling import pool
from trivet.runners.step_state import warm_up_batch
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader
from trivet_cpu import memory_plan, native_plan
from trivet_cpu.core_shares import CoreShare
from trivet_cpu.host import Host
from trivet_cpu.native_adapters import NativeAdapters
from trivet_cpu.native_library import (
    NO_MEMORY,
    STEP_ARRAYS,
    Cache,
    Draws,
    Layer,
    Model,
    Progress,
    Step,
)
from trivet_cpu.native_model import described_model
from trivet_cpu.native_plan import NativeShape
from trivet_cpu.native_pool import too_many_threads
from trivet_cpu.native_sampler import NativeSampler, Results
from trivet_cpu.native_stream import NativeStream
from trivet_cpu.native_weights import Arena, NativeWeights
from trivet_cpu.pooling import floats_at, sum_of_normed
from trivet_cpu.process_memory import return_free_memory

if TYPE_CHECKING:
    from trivet.contract import Int32


WARM_UP_TOKENS = 64  # a chunk that takes every path of the kernels


@dataclass(slots=True)
class _Step:
    """A step between `forward` and `collect`, with all that the stream reads of it."""

    batch: Batch
    arrays: list[Int32]
    rows: Int32  # of the hidden states whose logits are wanted
    draws: Draws
    progress: Progress = field(default_factory=Progress)
    number: int = 0  # of its last part on the stream
    results: Results | None = None
    pooled: NDArray[np.float32] | None = None
    failure: OutOfMemory | None = None


class CpuNativeRunner:
    """One model on the CPU. See `contract.Runner`."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.HOST_KV, Feature.LORA})
    max_in_flight = 2

    def __init__(
        self,
        spec: ModelSpec,
        plan: MemoryPlan,
        native: NativeShape,
        library: ctypes.CDLL,
        host: Host,
        cores: CoreShare,
    ) -> None:
        self._spec, self._plan, self._native, self._host = spec, plan, native, host
        self._library = library
        self._stream = NativeStream(library, native.num_threads, cores)
        # Its threads work in this object's memory: they end before it, at the end of the program, too.
        weakref.finalize(self, self._stream.close)
        self._frequencies = [
            inverse_frequencies(rope, plan.max_model_len) for rope in native_plan.distinct_ropes(spec)
        ]
        self._weights: NativeWeights | None = None
        self._layers: ctypes.Array[Layer] | None = None
        self._adapters: NativeAdapters | None = None
        self._model: Model | None = None
        self._buffer_sizes: dict[str, int] = {}
        self._buffers: Arena | None = None
        self._kv: Arena | None = None
        self._host_kv: Arena | None = None
        self._logits: NDArray[np.float32] | None = None
        self._sampler: NativeSampler | None = None
        self._newest = np.zeros(native.shape.max_num_seqs, np.int32)  # token of each slot
        self._steps: dict[int, _Step] = {}

    # ---- start -----------------------------------------------------------------------------------

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract."""
        native_plan.log_conversions(weights, self._native)
        packed = NativeWeights(self._spec, weights, self._native)
        pool = self._library.trivet_pool_create(self._native.num_threads)
        if pool is None:
            raise too_many_threads(self._native.num_threads)
        try:
            with TensorReader(weights) as reader:
                packed.load(reader, self._library, pool, on_progress)
        finally:
            self._library.trivet_pool_destroy(pool)
        self._weights = packed
        self._layers = packed.layers(native_plan.distinct_ropes(self._spec))
        if self._native.shape.adapters.num_slots:
            self._adapters = NativeAdapters(self._spec, self._native)
            for layer, adapted in zip(self._layers, self._adapters.layers, strict=True):
                layer.adapted = adapted
        self._buffer_sizes = native_plan.buffer_bytes(self._spec, weights, self._native)
        return_free_memory()

    def allocate_kv(self) -> None:
        """As the contract."""
        assert self._layers is not None, "load comes before allocate_kv"
        assert self._weights is not None
        spec, native = self._spec, self._native
        num_blocks = self._plan.num_blocks[0]
        sizes = [
            native_plan.kv_layer_bytes(spec, index, native, num_blocks) for index in range(spec.num_layers)
        ]
        rows, stride = native_plan.logits_rows(spec, native), native_plan.logits_stride(spec)
        buffer_bytes = sum(self._buffer_sizes.values())
        host_bytes = self._plan.num_host_blocks * self._plan.kv.block_bytes
        needed = sum(sizes) + host_bytes + buffer_bytes + native_plan.logits_bytes(spec, native)
        free = self._host.free_bytes()
        if needed > free:
            raise _kv_does_not_fit(needed, free)
        try:
            self._kv, self._host_kv = Arena(sum(sizes)), Arena(host_bytes)
            self._buffers = Arena(buffer_bytes)
            logits = Arena(native_plan.logits_bytes(spec, native))
            self._logits = logits.floats((rows, stride))
            self._sampler = NativeSampler(self._library, logits.floats((2 * native.num_threads, stride)))
        except MemoryError as error:
            raise _kv_does_not_fit(needed, self._host.free_bytes()) from error
        self._model = described_model(
            spec,
            native,
            self._weights,
            self._layers,
            self._frequencies,
            self._buffers,
            self._buffer_sizes,
            self._adapters,
        )
        for index, size in enumerate(sizes):
            attention = spec.layer(index).attention
            self._layers[index].cache = Cache(
                kind=native_plan.CACHE_KINDS[native.shape.kv_dtype],
                block_size=native.shape.block_size,
                num_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                data=self._kv.take(size),
            )
            self._host_kv.take(size // num_blocks * self._plan.num_host_blocks)

    def warm_up(self) -> None:
        """A small chunk and a decode bring the code into memory; the buffers are there."""
        for length in (min(WARM_UP_TOKENS, self._plan.max_num_batched_tokens, self._plan.max_model_len), 1):
            self._finish(self._post(warm_up_batch(length, self._plan.kv.block_size)))

    # ---- steps -----------------------------------------------------------------------------------

    def host_buffer(self, num_int32: int) -> Int32:
        """As the contract; the device is the host."""
        return np.empty(num_int32, np.int32)

    def forward(self, batch: Batch) -> None:
        """As the contract."""
        if len(self._steps) >= self.max_in_flight:  # the core was interrupted and has lost one
            self._stream.wait()  # ...whose buffer it writes to next
        self._copy_blocks(batch)
        self._steps[batch.step] = self._post(batch)

    def _post(self, batch: Batch) -> _Step:
        """Queue all layers over the batch; the hidden states stay in the runner's buffer."""
        assert self._model is not None, "allocate_kv comes before forward"
        token_ids, table = batch.token_ids.copy(), batch.block_tables[0]
        arrays = [token_ids, batch.positions, batch.query_start_loc, batch.seq_lens, table]
        draws = Draws(self._newest.ctypes.data, batch.slots.ctypes.data, batch.row_seqs.ctypes.data)
        state = _Step(batch, arrays, batch.logits_rows, draws)
        if not len(token_ids):
            return state
        step = Step(num_tokens=len(token_ids), num_seqs=len(batch.slots), table_stride=table.shape[1])
        for name, array in zip(STEP_ARRAYS, arrays, strict=True):
            setattr(step, name, array.ctypes.data)
        if self._adapters is not None and batch.adapters is not None and batch.adapters.any():
            step.adapters = batch.adapters.ctypes.data
            arrays.append(batch.adapters)
        last_start_loc = last_rows(batch)
        if last_start_loc is not None:
            step.last_start_loc = last_start_loc.ctypes.data
            arrays.append(last_start_loc)
            state.rows = np.arange(len(batch.logits_rows), dtype=np.int32)
        parts = (self._model, step, draws, state.progress)
        try:
            state.number = self._stream.posted(
                self._library.trivet_post_forward(self._stream.handle(), *map(ctypes.byref, parts))
            )
        except MemoryError as error:
            state.failure = _out_of_memory(error)
        return state

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract."""
        state = self._current(step)
        if state.failure is not None:
            return
        assert self._sampler is not None
        assert self._model is not None
        assert self._logits is not None
        state.pooled = self._pooled(state)
        state.results = self._sampler.begin(sampling, len(state.rows))
        height = len(self._logits)
        try:
            for first in range(0, len(state.rows), height):
                rows = state.rows[first : first + height]
                logits = self._logits[: len(rows), : self._spec.num_tokens]
                state.number = self._stream.posted(
                    self._library.trivet_post_sample(
                        self._stream.handle(),
                        ctypes.byref(self._model),
                        rows.ctypes.data,
                        ctypes.byref(self._sampler.rows_of(logits, first)),
                        ctypes.byref(state.draws),
                        ctypes.byref(state.progress),
                    )
                )
        except MemoryError as error:
            state.failure = _out_of_memory(error)

    def _pooled(self, state: _Step) -> NDArray[np.float32] | None:
        """[S, hidden_size] of the hidden states that the step has left in its buffer."""
        batch, model = state.batch, self._model
        if batch.pooling is None:
            return None
        assert model is not None
        self._stream.wait()
        hidden = floats_at(model.x, (len(batch.token_ids), model.padded_hidden_size))[:, : model.hidden_size]
        weight = floats_at(model.norm, (model.hidden_size,))
        return pool(
            batch, model.hidden_size, lambda first, stop: sum_of_normed(hidden[first:stop], weight, model.eps)
        )

    def collect(self, step: int) -> StepOutput:
        """As the contract."""
        state = self._current(step)
        self._finish(state)
        if state.results is None:
            raise BackendError(f"collect({step}) was called before sample({step})")
        for number in [number for number in self._steps if number <= step]:  # older ones are lost ones
            del self._steps[number]
        batch, progress = state.batch, state.progress
        return state.results.output(
            step,
            batch.row_seqs,
            len(batch.slots),
            state.pooled,
            (progress.ended_ns - progress.started_ns) * 1e-9,
        )

    def _finish(self, state: _Step) -> None:
        """Until it is done. Raises: OutOfMemory; nothing of this step or the one behind it counts then."""
        self._stream.wait(state.number)
        if state.progress.status:
            state.failure = _out_of_memory(MemoryError(NO_MEMORY))
        if state.failure is not None:
            self._stream.wait()
            self._steps.clear()
            raise state.failure

    def _current(self, step: int) -> _Step:
        if step not in self._steps:
            raise BackendError(f"step {step} is not in flight; forward has to come first")
        return self._steps[step]

    def _copy_blocks(self, batch: Batch) -> None:
        """All sources of a copy are read before a target is written, once the steps before have ended."""
        if batch.copies:
            self._stream.wait()
        for copy in batch.copies:
            sources, targets = self._blocks(copy.from_host), self._blocks(copy.to_host)
            for source, target in zip(sources, targets, strict=True):
                target[copy.pairs[:, 1]] = source[copy.pairs[:, 0]]

    def _blocks(self, on_host: bool) -> Iterator[NDArray[np.uint8]]:
        """[num_blocks, bytes of a block] of each layer."""
        arena = self._host_kv if on_host else self._kv
        assert arena is not None, "allocate_kv comes before forward"
        return arena.arrays(self._plan.num_host_blocks if on_host else self._plan.num_blocks[0])

    # ---- the rest --------------------------------------------------------------------------------

    def memory(self) -> tuple[MemoryPart, ...]:
        """What has been allocated, and what a step takes at most besides."""
        buffers = self._buffers.size_bytes if self._buffers else 0
        return (
            MemoryPart("weights", self._weights.size_bytes if self._weights else 0),
            *((MemoryPart(PART_NAME, self._adapters.size_bytes),) if self._adapters else ()),
            MemoryPart("kv", self._kv.size_bytes if self._kv else 0),
            *memory_plan.host_kv_part(self._host_kv.size_bytes if self._host_kv else 0),
            MemoryPart("activations", buffers),
            MemoryPart("logits", native_plan.logits_bytes(self._spec, self._native)),
        )

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """As the contract; waits for the steps in flight, which read the slots."""
        bank = bank_of(self._adapters)
        self._stream.wait()
        bank.load(slot, weights)

    def unload_adapter(self, slot: int) -> None:
        """As the contract; waits as `load_adapter`."""
        bank = bank_of(self._adapters)
        self._stream.wait()
        bank.unload(slot)

    def close(self) -> None:
        """As the contract."""
        self._stream.close()
        self._steps.clear()
        self._model = self._layers = self._weights = self._adapters = None
        self._buffers = self._kv = self._host_kv = self._logits = self._sampler = None
        return_free_memory()


def last_rows(batch: Batch) -> Int32 | None:
    """[S + 1]: where the rows with logits would start, by sequence, if all others were left out.

    None where the hidden states of others are wanted, or where a sequence has logits of earlier rows only.
    """
    num_rows, num_tokens = len(batch.logits_rows), len(batch.token_ids)
    if num_rows == num_tokens or batch.pooling is not None:
        return None
    counts = np.bincount(batch.row_seqs, minlength=len(batch.slots))
    start_loc = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=start_loc[1:])
    moved = np.repeat(batch.query_start_loc[1:] - start_loc[1:], counts)
    is_last = np.array_equal(batch.logits_rows, np.arange(num_rows) + moved)
    return start_loc if is_last else None


def _kv_does_not_fit(needed: int, free: int) -> DoesNotFit:
    return DoesNotFit(
        f"the KV cache takes {needed / (1 << 30):.2f} GiB and {free / (1 << 30):.2f} GiB is free now; "
        "lower max_model_len or gpu_memory_utilization, or end what else runs on this host"
    )


def _out_of_memory(error: MemoryError) -> OutOfMemory:
    return OutOfMemory(
        f"the step ran out of host memory ({error}); lower max_num_batched_tokens or max_num_seqs"
    )
