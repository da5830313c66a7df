"""One model on one NPU, or one rank of it: the generic decoder over `AscendOps`.

Steps are queued on the device and waited for in `sample`, where the logits come to the host's sampler; one
step is in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trivet.contract import Batch, MemoryPlan, Sampling, StepOutput
from trivet.engine.sampler import sample_pieces
from trivet.errors import BackendError, OutOfMemory
from trivet.models.ops import StepAdapters
from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES, TorchOps
from trivet.runners.collectives import Collectives
from trivet.runners.device_runner import DeviceRunner, sums_of
from trivet.runners.op_check import twin_notices
from trivet.runners.pooling import pool
from trivet.runners.sharded_weights import Packer
from trivet.runners.slices import Rank
from trivet.runners.step_state import NewestTokens, StepState
from trivet.runners.warm_up import warm_up_steps
from trivet_ascend import memory_plan
from trivet_ascend.ascend_ops import AscendOps
from trivet_ascend.decode_graphs import DecodeGraphs
from trivet_ascend.explanations import cure_for
from trivet_ascend.graphs import AclGraphs
from trivet_ascend.memory_plan import Shape
from trivet_ascend.npu_device import Device, as_step_failure
from trivet_ascend.op_table import NPU, TWINS
from trivet_ascend.packed_weights import Layout
from trivet_ascend.paged_kv import PagedKV, StepView
from trivet_ascend.self_test import without_failing_ops
from trivet_ascend.weight_kinds import shares_embedding

if TYPE_CHECKING:
    from trivet.contract import Float32
    from trivet.weights.index import WeightIndex

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step(StepState):
    """With what `sample` needs of the final hidden states."""

    hidden: Tensor | None = None  # [R, hidden_size] of the logits rows
    pooled: Float32 | None = None  # [S, hidden_size]


class AscendRunner(DeviceRunner[Shape, Device, PagedKV]):
    """See `contract.Runner`."""

    device_noun = "NPU"
    max_in_flight = 1

    def __init__(
        self,
        spec: ModelSpec,
        plan: MemoryPlan,
        shape: Shape,
        device: Device,
        rank: Rank = Rank(),  # noqa: B008  # frozen
        collectives: Collectives | None = None,
    ) -> None:
        super().__init__(spec, plan, shape, device, rank, collectives)
        table = self._table = TWINS if shape.dtype == "f32" else NPU  # the fused operations take 16 bits
        self.ops = AscendOps(shape.dtype, plan.max_model_len, table, shape.options, device.torch_device)
        self._newest = NewestTokens(shape.max_num_seqs)
        self._step: _Step | None = None
        self._graphs: DecodeGraphs | None = None

    # ---- start -----------------------------------------------------------------------------------

    def _prepared_ops(self, weights: WeightIndex) -> tuple[TorchOps, Packer]:
        """As `DeviceRunner`."""
        self._say_what_is_gathered()
        self._test_operations()
        self.ops.packer = self._new_packer()
        return self.ops, self.ops.packer

    def _new_packer(self) -> Packer:
        dtype, weights = DTYPES[self._shape.dtype], self._shape.options.weights
        device = self._device.torch_device
        layout = Layout(dtype, weights, device, self.ops.table)
        shares = shares_embedding(weights)
        return Packer(dtype, device, self._rank, self._collectives, layout, shares_embedding=shares)

    def _say_what_is_gathered(self) -> None:
        for layer in self._local.kinds:
            shape = self._shape
            reason = shape.options.why_gathered(layer.attention, shape.dtype, self._plan.max_model_len)
            if reason is not None:
                logger.warning("attention=gather slower than the fused operation, because of %s", reason)

    def _test_operations(self) -> None:
        """Before weights are laid out for them: silent wrong results are known (see `op_cases`)."""
        shape = self._shape
        if shape.options.self_test == "off" or shape.dtype == "f32":
            return
        self.ops.table = without_failing_ops(self._local, shape, self.ops.table, self._device.torch_device)

    def _new_cache(self) -> PagedKV:
        """As `DeviceRunner`."""
        dtype, block_size = DTYPES[self._shape.dtype], self._plan.kv.block_size
        device = self._device.torch_device
        self.ops.cache = PagedKV(self._local, self._plan.num_blocks[0], block_size, dtype, device)
        return self.ops.cache

    def warm_up(self) -> None:
        """The fullest steps and a whole piece of logits, so that lack of memory shows here."""
        try:
            for step in warm_up_steps(self._plan, self._shape.max_num_seqs, apart=True):
                self._run(self._warm_up_step(step))
            hidden = self._no_hidden().new_zeros((self._logits_rows(), self._spec.hidden_size))
            for _ in self._pieces_of_logits(hidden):
                continue
            self._device.synchronise()
        except torch.OutOfMemoryError as error:
            raise self._does_not_fit("a full step", "activations") from error
        self._capture_graphs()
        self._device.synchronise()

    def _capture_graphs(self) -> None:
        """Where they were asked for and nothing of a step depends on the host."""
        shape, sizes = self._shape, self._shape.graph_sizes
        if not sizes:
            return
        assert self._decoder is not None
        reasons = [
            shape.options.why_gathered(layer.attention, shape.dtype, self._plan.max_model_len)
            for layer in self._local.kinds
        ]
        is_gathered = any(reasons) or self.ops.table.fused_attention is not NPU.fused_attention
        if is_gathered or shape.num_ranks > 1 or shape.adapters.num_slots:
            what = "gathered attention" if is_gathered else "a step of several ranks"
            if shape.adapters.num_slots:
                what = "a step with adapters"
            logger.warning("graphs=off %s is not captured; steps run eagerly", what)
            self._notices.append(f"options.graphs is on, and {what} is not captured; steps run eagerly")
            return
        captures = AclGraphs(self._forward, shape.blocks_per_sequence, self._device.torch_device)
        self._graphs = DecodeGraphs(captures, self._plan.kv.block_size, shape.blocks_per_sequence, cure_for)
        self._graphs.capture(sizes)
        if self._graphs.failure:
            self._notices.append(f"{self._graphs.failure}; steps run eagerly, slower")

    # ---- steps -----------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> None:
        """As the contract."""
        self._step = _Step(batch, time.perf_counter())
        try:
            self._copy_blocks(batch)
            hidden = self._run(batch)
            with torch.inference_mode():
                rows = torch.from_numpy(batch.logits_rows.astype(np.int64)).to(hidden.device)
                self._step.hidden = hidden.index_select(0, rows)
                self._step.pooled = pool(batch, hidden.shape[1], sums_of(hidden))
        except RuntimeError as error:
            self._step.failure = as_out_of_memory(error)

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract; waits for the device, piece by piece of the logits."""
        current = self._current(step)
        if current.failure is not None:
            return
        batch = current.batch
        try:
            pieces = self._logits(current)
            output = sample_pieces(pieces, sampling, batch.row_seqs, len(batch.slots), step)
        except RuntimeError as error:
            current.failure = as_out_of_memory(error)
            return
        self._newest.keep(batch, sampling, output)
        taken_s = time.perf_counter() - current.started_s
        current.output = replace(output, pooled=current.pooled, device_time_s=taken_s)

    def take_part_in_sampling(self, step: int) -> None:
        """A rank's share of `sample`: the logits of its part of the vocabulary."""
        current = self._current(step)
        if current.failure is not None:
            raise current.failure
        for _ in self._logits(current):
            continue
        self._step = None

    def resolved(self, batch: Batch) -> Batch:
        """With every token id known."""
        return replace(batch, token_ids=self._newest.resolved(batch))

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
        assert self._decoder is not None, "load comes before forward"
        assert self._kv is not None, "allocate_kv comes before forward"
        if not len(batch.token_ids):
            return self._no_hidden()
        device, resolved = self._device.torch_device, self._newest.resolved(batch)
        if self._graphs is not None and (captured := self._graphs.run(batch, resolved)) is not None:
            return captured
        view = StepView.of(batch, self._kv.block_size, device)
        token_ids = torch.from_numpy(resolved.astype(np.int64)).to(device)
        positions = torch.from_numpy(batch.positions.astype(np.int64)).to(device)
        with torch.inference_mode():
            adapters = self._adapters.step(batch) if self._adapters else None
            return self._forward(token_ids, positions, view, adapters)

    def _forward(
        self, token_ids: Tensor, positions: Tensor, view: StepView, adapters: StepAdapters | None = None
    ) -> Tensor:
        """One pass; rotations are computed anew, for a captured step's positions change in place."""
        assert self._decoder is not None
        self.ops.forget_angles()
        hidden: Tensor = self._decoder.forward(token_ids, positions, view, adapters)
        return hidden

    def _logits(self, current: _Step) -> Iterator[Float32]:
        assert current.hidden is not None
        for piece in self._pieces_of_logits(current.hidden):
            yield piece.cpu().numpy()

    def _logits_rows(self) -> int:
        """As `DeviceRunner`."""
        return memory_plan.logits_rows(self._spec, self._shape.max_logits_rows)

    # ---- the rest --------------------------------------------------------------------------------

    def notices(self) -> tuple[str, ...]:
        """As `GivesNotices`: what the self-test at start replaced, graphs that there are not."""
        return (*twin_notices(self._table, self.ops.table, "ascend"), *self._notices)

    def close(self) -> None:
        """As the contract."""
        if self._graphs is not None:
            self._graphs.close()
        self._decoder = self._kv = self._step = self._graphs = self._adapters = None
        self.ops.release()
        self._device.release()


def as_out_of_memory(error: RuntimeError) -> OutOfMemory:
    """Raises: BackendError with a cure where the error is about something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(
            f"the step ran out of the NPU's memory ({error}); lower max_num_batched_tokens or max_num_seqs"
        )
    raise as_step_failure(error) from error
