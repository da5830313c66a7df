"""The torch runner of the CPU: reference in float32, and what runs where there is no compiler.

It computes in the calling thread: `forward` and `sample` have done their work when they return, so one step
is in flight. torch and NumPy release the GIL inside their kernels.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivet.contract import (
    Batch,
    Feature,
    MemoryPart,
    MemoryPlan,
    Sampling,
    StepOutput,
)
from trivet.engine.sampler import sample_pieces
from trivet.errors import BackendError, DoesNotFit, OutOfMemory
from trivet.models.decoder import Decoder
from trivet.models.ops import StepAdapters
from trivet.models.spec import ModelSpec
from trivet.models.torch_attention import PagedKV, PagedStep
from trivet.models.torch_ops import DTYPES
from trivet.runners.adapter_memory import PART_NAME, bank_of
from trivet.runners.adapters import AdapterBank
from trivet.runners.pooling import pool
from trivet.runners.step_state import NewestTokens, StepState, warm_up_batch
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader
from trivet_cpu import memory_plan
from trivet_cpu.host import Host
from trivet_cpu.memory_plan import Shape
from trivet_cpu.native_kv import NativeKV
from trivet_cpu.native_pool import NativePool
from trivet_cpu.packed_ops import CpuOps
from trivet_cpu.process_memory import return_free_memory

if TYPE_CHECKING:
    from trivet.contract import Int32
    from trivet.models.transformers_fallback import TransformersModel


class Model(Protocol):
    """What a step runs: our decoder, or transformers' own class."""

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: PagedStep, adapters: StepAdapters | None = None
    ) -> Tensor:
        """[T], [T] -> hidden states after the final norm [T, hidden_size]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] -> [R, vocab_size]."""


@dataclass(slots=True)
class _Step(StepState):
    """With the final hidden states of the logits rows [R, hidden_size]."""

    hidden: Tensor | None = None
    pooled: NDArray[np.float32] | None = None  # [S, hidden_size]


class CpuTorchRunner:
    """One model on the CPU. See `contract.Runner`."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.HOST_KV, Feature.LORA})
    max_in_flight = 1

    def __init__(
        self,
        spec: ModelSpec,
        plan: MemoryPlan,
        shape: Shape,
        num_threads: int,
        host: Host,
        native: tuple[ctypes.CDLL, NativePool] | None = None,
    ) -> None:
        """With `native` the kernels of that library attend, else torch."""
        self._spec, self._plan, self._shape, self._host = spec, plan, shape, host
        torch.set_num_threads(num_threads)
        self._ops = CpuOps(shape.dtype, plan.max_model_len)
        self._model: Model | None = None
        self._fallback: TransformersModel | None = None  # the model, where it has no spec
        self._kv: PagedKV | NativeKV | None = None
        self._adapters: AdapterBank | None = None
        self._native = native
        self._newest = NewestTokens(shape.max_num_seqs)
        self._step: _Step | None = None

    # ---- start -----------------------------------------------------------------------------------

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract: every tensor is dequantised, cast and packed; one at a time is held in float32."""
        if self._spec.shapes_only:
            self._fallback = _load_with_transformers(
                self._spec, self._ops.dtype, self._plan.max_model_len, weights
            )
            self._model = self._fallback
            on_progress(weights.size_bytes, weights.size_bytes)
            return
        with TensorReader(weights) as reader, torch.inference_mode():
            decoder = Decoder(self._spec, self._ops)
            decoder.load(_Source(reader, on_progress))
        self._model = decoder
        if self._shape.adapters.num_slots:
            self._adapters = AdapterBank(self._spec, self._shape.adapters, self._ops.dtype)
        return_free_memory()

    def allocate_kv(self) -> None:
        """As the contract."""
        needed = memory_plan.workspace_bytes(self._spec, self._shape) + sum(
            part.size_bytes for part in self._plan.parts if part.name in ("kv", "host_kv")
        )
        free = self._host.free_bytes()
        if needed > free:
            raise _kv_does_not_fit(needed, free)
        try:
            self._kv = self._new_kv()
        except (MemoryError, RuntimeError) as error:
            raise _kv_does_not_fit(needed, self._host.free_bytes()) from error
        self._ops.kv = self._kv
        if self._fallback is not None:
            self._fallback.kv = self._kv

    def _new_kv(self) -> PagedKV | NativeKV:
        num_blocks, num_host_blocks = self._plan.num_blocks[0], self._plan.num_host_blocks
        if self._native is not None:
            return NativeKV(*self._native, self._spec, self._shape, num_blocks, num_host_blocks)
        return PagedKV(
            self._spec,
            num_blocks,
            self._plan.kv.block_size,
            DTYPES[self._shape.kv_dtype],
            self._shape.workspace_blocks,
            num_host_blocks,
        )

    def warm_up(self) -> None:
        """One chunk and one decode: oneDNN makes its code, torch its thread pool.

        Raises: UnsupportedArchitecture where transformers' code does not fit paged attention.
        """
        if self._fallback is not None:
            self._fallback.check_paging()
        for length in (min(self._plan.max_num_batched_tokens, self._plan.max_model_len), 1):
            batch = warm_up_batch(length, self._plan.kv.block_size)
            self._run(self._adapters.fullest(batch) if self._adapters else batch)

    # ---- steps -----------------------------------------------------------------------------------

    def host_buffer(self, num_int32: int) -> Int32:
        """As the contract; the device is the host."""
        return np.empty(num_int32, np.int32)

    def forward(self, batch: Batch) -> None:
        """As the contract; computes at once."""
        self._step = _Step(batch, time.perf_counter())
        try:
            self._copy_blocks(batch)
            self._keep_hidden(self._step, self._run(batch))
        except (MemoryError, RuntimeError) as error:
            self._step.failure = _as_out_of_memory(error)

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract; computes at once."""
        current = self._current(step)
        if current.failure is not None:
            return
        batch = current.batch
        num_seqs = len(batch.slots)
        try:
            output = sample_pieces(self._logits(current), sampling, batch.row_seqs, num_seqs, step)
        except (MemoryError, RuntimeError) as error:
            current.failure = _as_out_of_memory(error)
            return
        self._newest.keep(batch, sampling, output)
        taken_s = time.perf_counter() - current.started_s
        current.output = replace(output, pooled=current.pooled, device_time_s=taken_s)

    def collect(self, step: int) -> StepOutput:
        """As the contract."""
        current = self._current(step)
        self._step = None
        return current.result()

    def _current(self, step: int) -> _Step:
        if self._step is None or self._step.batch.step != step:
            raise BackendError(f"step {step} is not in flight; forward has to come first")
        return self._step

    def _run(self, batch: Batch) -> Tensor:
        """Hidden states [T, hidden_size] after the final norm."""
        assert self._model is not None, "load comes before forward"
        assert self._kv is not None, "allocate_kv comes before forward"
        view = PagedStep(batch, self._kv.block_size, self._kv.workspace_blocks)
        token_ids = torch.from_numpy(self._newest.resolved(batch).astype(np.int64))
        positions = torch.from_numpy(batch.positions.astype(np.int64))
        with torch.inference_mode():
            adapters = self._adapters.step(batch) if self._adapters else None
            return self._model.forward(token_ids, positions, view, adapters)

    def _keep_hidden(self, step: _Step, hidden: Tensor) -> None:
        """What `sample` needs of it."""

        def sum_of(first: int, stop: int) -> NDArray[np.float32]:
            total: NDArray[np.float32] = hidden[first:stop].sum(dim=0, dtype=torch.float32).numpy()
            return total

        with torch.inference_mode():
            step.hidden = hidden[torch.from_numpy(step.batch.logits_rows.astype(np.int64))]
            step.pooled = pool(step.batch, self._spec.hidden_size, sum_of)

    def _logits(self, current: _Step) -> Iterator[NDArray[np.float32]]:
        """Pieces [<= max_logits_rows, num_tokens]; padding rows of the head are never sampled."""
        assert self._model is not None
        assert current.hidden is not None
        rows = memory_plan.logits_rows(self._spec, self._shape.max_logits_rows)
        for first in range(0, len(current.hidden), rows):
            with torch.inference_mode():
                logits = self._model.logits(current.hidden[first : first + rows])
                logits = logits[:, : self._spec.num_tokens].float()
            yield logits.numpy()

    def _copy_blocks(self, batch: Batch) -> None:
        assert self._kv is not None, "allocate_kv comes before forward"
        for copy in batch.copies:
            self._kv.copy_blocks(copy)

    # ---- the rest --------------------------------------------------------------------------------

    def memory(self) -> tuple[MemoryPart, ...]:
        """What has been allocated, and what a step takes at most besides."""
        workspace, host = (self._kv.workspace_bytes, self._kv.host_bytes) if self._kv else (0, 0)
        return (
            MemoryPart("weights", self._fallback.size_bytes if self._fallback else self._ops.size_bytes),
            *((MemoryPart(PART_NAME, self._adapters.size_bytes),) if self._adapters else ()),
            MemoryPart("kv", self._kv.size_bytes if self._kv else 0),
            MemoryPart("activations", workspace + memory_plan.temporary_bytes(self._spec, self._shape)),
            MemoryPart("logits", memory_plan.logits_bytes(self._spec, self._shape)),
            *memory_plan.host_kv_part(host),
        )

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """As the contract."""
        bank_of(self._adapters).load(slot, weights)

    def unload_adapter(self, slot: int) -> None:
        """As the contract."""
        bank_of(self._adapters).unload(slot)

    def close(self) -> None:
        """As the contract."""
        if self._fallback is not None:
            self._fallback.close()
        if self._native is not None:
            self._native[1].close()
        self._native = None
        self._model = self._fallback = self._kv = self._step = self._adapters = None
        self._ops = CpuOps(self._shape.dtype, self._plan.max_model_len)
        return_free_memory()


class _Source:
    """`decoder.TensorSource` over mapped files, counting bytes."""

    def __init__(self, reader: TensorReader, on_progress: Callable[[int, int], None]) -> None:
        self._reader, self._on_progress = reader, on_progress
        self._done = 0

    def __contains__(self, name: object) -> bool:
        return name in self._reader.index

    def tensor(self, name: str) -> Tensor:
        values = self._reader.float32(name)
        self._done += self._reader.index[name].size_bytes
        self._on_progress(self._done, self._reader.index.size_bytes)
        return torch.from_numpy(values)


def _load_with_transformers(
    spec: ModelSpec, dtype: torch.dtype, max_model_len: int, weights: WeightIndex
) -> TransformersModel:
    # Imported here: transformers takes seconds to import, and models with a spec do without it.
    from trivet.models.transformers_fallback import TransformersModel

    model = TransformersModel(spec, dtype, max_model_len)
    model.load(Path(weights.tensors[0].file).parent)
    return model


def _kv_does_not_fit(needed: int, free: int) -> DoesNotFit:
    return DoesNotFit(
        f"the KV cache takes {needed / (1 << 30):.2f} GiB and {free / (1 << 30):.2f} GiB is free now; "
        "lower max_model_len or gpu_memory_utilization, or end what else runs on this host"
    )


def _as_out_of_memory(error: MemoryError | RuntimeError) -> OutOfMemory:
    """Raises: the error itself, where it is about something else."""
    if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
        raise error
    return OutOfMemory(
        f"the step ran out of host memory ({error}); lower max_num_batched_tokens or max_num_seqs"
    )
