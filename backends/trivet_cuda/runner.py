"""One model on one GPU, or one rank of it: the generic decoder over `CudaOps`.

`forward` and `sample` only queue; `collect` waits. Two steps may be in flight: a token that the host has not
seen is taken from the device's own table of the newest token of each slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivet.contract import Batch, MemoryPlan, Sampling, StepOutput
from trivet.errors import BackendError, DoesNotFit, OutOfMemory
from trivet.models.ops import StepAdapters
from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES, TorchOps
from trivet.runners.collectives import Collectives
from trivet.runners.device_runner import GIB, STEP_PARTS, DeviceRunner
from trivet.runners.op_check import twin_notices
from trivet.runners.sharded_weights import Packer
from trivet.runners.slices import Rank
from trivet.runners.step_state import NewestTokens
from trivet.runners.warm_up import edited, warm_up_sampling, warm_up_steps
from trivet_cuda import device_sampler, memory_plan
from trivet_cuda.cuda_ops import CudaOps
from trivet_cuda.device import Device, Mark
from trivet_cuda.device_sampler import Drawn
from trivet_cuda.failures import as_step_failure, is_out_of_memory, told_in_words
from trivet_cuda.graphs import DecodeGraphs, idle_arrays
from trivet_cuda.memory_plan import Shape
from trivet_cuda.op_table import TWINS, OpTable
from trivet_cuda.packed_weights import Layout
from trivet_cuda.paged_kv import PagedKV
from trivet_cuda.pooled import pooled
from trivet_cuda.self_test import without_failing_ops
from trivet_cuda.step_view import StepView
from trivet_cuda.upload import upload

if TYPE_CHECKING:
    from trivet.weights.index import WeightIndex

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """One step between `forward` and `collect`."""

    batch: Batch
    began: Mark | None = None
    hidden: Tensor | None = None  # [R, hidden_size] of the logits rows
    pooled: Tensor | None = None  # [S, hidden_size] on the host, complete once the step has ended
    sampling: Sampling | None = None
    drawn: Drawn | None = None
    ended: Mark | None = None
    failure: OutOfMemory | None = None


class CudaRunner(DeviceRunner[Shape, Device, PagedKV]):
    """See `contract.Runner`."""

    device_noun = "GPU"
    max_in_flight = 2

    def __init__(
        self,
        spec: ModelSpec,
        plan: MemoryPlan,
        shape: Shape,
        device: Device,
        table: OpTable,
        rank: Rank = Rank(),  # noqa: B008  # frozen
        collectives: Collectives | None = None,
    ) -> None:
        super().__init__(spec, plan, shape, device, rank, collectives)
        self._table = table
        self.ops = CudaOps(
            shape.dtype, plan.max_model_len, table, device.torch_device, device.arch, device.num_sms
        )
        self._graphs: DecodeGraphs | None = None
        self._newest = torch.zeros(shape.max_num_seqs, dtype=torch.int32, device=device.torch_device)
        self._seen = NewestTokens(shape.max_num_seqs)
        self._steps: dict[int, _Step] = {}

    # ---- start -----------------------------------------------------------------------------------

    def _prepared_ops(self, weights: WeightIndex) -> tuple[TorchOps, Packer]:
        """As `DeviceRunner`."""
        shape, device = self._shape, self._device
        if shape.options.self_test == "on":
            self.ops.table = without_failing_ops(self._spec, weights, shape, self.ops.table, device)
        where = device.torch_device
        layout = Layout(shape.dtype, shape.options.weights, where, self.ops.table, device.arch)
        self.ops.packer = Packer(
            DTYPES[shape.dtype],
            where,
            self._rank,
            self._collectives,
            layout,
            shares_embedding=True,
            vector_dtype=torch.float32,  # the norm kernels read either
        )
        return self.ops, self.ops.packer

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract."""
        with told_in_words(lambda: self._does_not_fit("the weights", "weights")):
            super().load(weights, on_progress)

    def _new_cache(self) -> PagedKV:
        """As `DeviceRunner`."""
        num_blocks, kv = self._plan.num_blocks[0], self._plan.kv
        device = self._device.torch_device
        self.ops.cache = PagedKV(self._local, num_blocks, kv.block_size, self._shape.kv_dtype, device)
        return self.ops.cache

    def warm_up(self) -> None:
        """The fullest step and the costliest draw, whose peaks are measured; every bucket of decodes.

        Raises: DoesNotFit where a step takes more than is planned, or more than graphs have left.
        """
        with told_in_words(lambda: self._does_not_fit("a full step", "activations")):
            with self._measured_as("activations"):
                for step in self._warm_up_steps():
                    self._run(self._warm_up_step(step))
            with self._measured_as("logits"):
                self._draw_each_way()
            self._hold_to_plan()
            if self._shape.captures:
                self._capture_graphs()
            if self._graphs is None and not self._have_all_ranks(self._decodes_by_twin):
                self._run_every_bucket()
            self._device.synchronise()
        self._leave_room_for_a_step()

    def _warm_up_steps(self) -> tuple[Batch, ...]:
        return warm_up_steps(self._plan, self._shape.max_num_seqs)

    def _draw_each_way(self) -> None:
        """A whole piece of logits, as it is and with edits and masks.

        The sampler's own kernels are loaded before a request waits for them.
        """
        rows, device = self._logits_rows(), self._device.torch_device
        dtype = DTYPES[self._shape.dtype]
        with torch.inference_mode():
            hidden = torch.zeros((rows, self._spec.hidden_size), dtype=dtype, device=device)
            plain = warm_up_sampling(rows, self._spec.num_tokens)
            for sampling in (plain, edited(plain, self._spec.num_tokens)):
                device_sampler.draw(self._pieces_of_logits(hidden), sampling, device)

    @contextmanager
    def _measured_as(self, part: str) -> Iterator[None]:
        """What the calls inside take at most, on any rank: one may run a twin and the others a kernel."""
        self._device.synchronise()
        self._device.reset_peak()
        yield
        self._device.synchronise()
        peak = torch.tensor([[self._device.peak_bytes()]], device=self._device.torch_device)
        self._measured[part] = int(self._collectives.concatenate(peak).max())
        logger.info("part=%s peak=%d planned=%d", part, self._measured[part], self._planned(part))

    def _hold_to_plan(self) -> None:
        """A pass and its draw follow each other, so each may take what is planned for both.

        What is beyond the plan may be planned for another model: there is no start with it, and the next plan
        counts with what was measured (`peaks`). All ranks know the same peak and end here together.
        """
        peak, planned = self._peak_bytes(), sum(self._planned(part) for part in STEP_PARTS)
        if peak > planned:
            raise DoesNotFit(
                f"a full step took {peak / GIB:.3f} GiB of the GPU beside weights and KV, and "
                f"{planned / GIB:.3f} GiB are planned for it; start it again, which plans with what was "
                "measured, or lower max_num_batched_tokens or max_num_seqs"
            )

    def _peak_bytes(self) -> int:
        return max(self._measured[part] for part in STEP_PARTS)

    def _leave_room_for_a_step(self) -> None:
        """Graphs and libraries take memory that nobody can plan to the byte.

        Refused on every rank at the same place: the others would wait for one that has left.
        """
        peak, free = self._peak_bytes(), self._device.free_bytes()
        if self._have_all_ranks(peak <= free):
            return
        raise DoesNotFit(
            f"a full step takes {peak / GIB:.3f} GiB of the GPU and {free / GIB:.3f} GiB is left beside "
            "weights, KV and graphs; lower gpu_memory_utilization or set options.graphs to off"
            if peak > free
            else "a full step does not fit on another rank's GPU"
        )

    @property
    def _decodes_by_twin(self) -> bool:
        """In pieces of many small operations, which are the same in every bucket."""
        return self.ops.table.decode_attention is TWINS.decode_attention

    def _capture_graphs(self) -> None:
        if not self._have_all_ranks(not self._decodes_by_twin):
            self._notices.append(
                "no graphs are captured, since decode_attention runs as its twin in plain torch, of whose "
                "small operations a graph would hold thousands; steps run eagerly, slower"
            )
            return
        graphs = DecodeGraphs(
            self._forward_captured,
            self._device.capture,
            self._plan.kv.block_size,
            self._shape.blocks_per_sequence,
            self._device.torch_device,
        )
        free = self._device.free_bytes()
        try:
            graphs.capture(self._shape.buckets, self._have_all_ranks)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            planned, left = self._planned("graphs") / GIB, self._device.free_bytes() / GIB
            raise DoesNotFit(
                f"captured decodes should take {planned:.2f} GiB of the GPU, and {left:.2f} GiB is free now; "
                "set options.graphs to off, or lower max_num_seqs or gpu_memory_utilization"
            ) from error
        self._graphs = graphs if graphs.buckets else None
        self._measure_graphs(free - self._device.free_bytes())
        if graphs.failure:
            self._notices.append(f"{graphs.failure}; steps run eagerly, slower")

    def _measure_graphs(self, taken: int) -> None:
        """Of the device's free memory: torch's allocator does not tell what the driver keeps of a graph."""
        taken, planned = max(0, taken), self._planned("graphs")
        self._measured["graphs"] = taken
        logger.info("part=graphs taken=%d planned=%d", taken, planned)
        if taken > planned:
            self._notices.append(
                f"captured decodes took {taken / GIB:.2f} GiB of the GPU and {planned / GIB:.2f} GiB are "
                "planned for them, so another model planned beside this one may find too little; lower "
                "max_num_seqs or set options.graphs to off"
            )

    def _have_all_ranks(self, succeeded: bool) -> bool:
        """Whether every rank can say so; it waits for the device."""
        failures = torch.tensor([0.0 if succeeded else 1.0], device=self._device.torch_device)
        return self._collectives.sum(failures).item() == 0.0

    def _run_every_bucket(self) -> None:
        """Kernels depend on the bucket; capturing would have compiled them.

        Not on a table's width: with one column a twin, on a rank whose kernel failed, has little to walk.
        """
        device, block_size = self._device.torch_device, self._plan.kv.block_size
        for size in self._shape.buckets:
            arrays = idle_arrays(size, block_size, num_columns=1)
            with torch.inference_mode():
                self._forward_captured(StepView.over(upload(arrays, device), size, size))

    # ---- steps -----------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> None:
        """As the contract."""
        step = self._steps[batch.step] = _Step(batch)
        try:
            self._device.use()
            step.began = self._device.mark()
            self._copy_blocks(batch)
            hidden = self._run(batch)
            with torch.inference_mode():
                rows = upload({"rows": batch.logits_rows}, hidden.device)["rows"]
                # A copy: a graph's own result is overwritten by the next step.
                step.hidden = hidden.index_select(0, rows)
                step.pooled = pooled(batch, hidden)
        except RuntimeError as error:
            step.failure = as_step_failure(error)

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract."""
        current = self._current(step)
        if current.failure is not None:
            return
        device = self._device.torch_device
        try:
            self._device.use()
            with torch.inference_mode():
                current.sampling = sampling
                current.drawn = device_sampler.draw(self._logits(current), sampling, device)
                device_sampler.newest_tokens(self._newest, current.drawn, current.batch, sampling)
                current.ended = self._device.mark()
        except RuntimeError as error:
            current.failure = as_step_failure(error)

    def collect(self, step: int) -> StepOutput:
        """As the contract."""
        current = self._current(step)
        if current.failure is not None:
            self._steps.clear()  # nothing of this step or those behind it counts
            try:
                self._device.synchronise()
            except RuntimeError as error:  # it was not the memory alone
                raise as_step_failure(error) from error
            raise current.failure
        if current.drawn is None or current.sampling is None or current.ended is None:
            raise BackendError(f"collect({step}) was called before sample({step})")
        try:
            current.ended.wait()
        except RuntimeError as error:
            raise as_step_failure(error) from error
        del self._steps[step]
        output = current.drawn.output(current.batch, current.sampling)
        self._seen.keep(current.batch, current.sampling, output)
        assert current.began is not None  # of every step that was sampled
        taken_s = current.ended.seconds_since(current.began)
        means = None if current.pooled is None else current.pooled.numpy()
        return replace(output, pooled=means, device_time_s=taken_s)

    def is_ready(self, step: int) -> bool:
        """As `DeviceRunner`; also where `collect` would raise."""
        ended = self._current(step).ended
        try:
            return ended is None or ended.is_passed()
        except RuntimeError:
            return True  # collect says what the device says

    def resolved(self, batch: Batch) -> Batch:
        """With every token id known; all steps before have been collected."""
        return replace(batch, token_ids=self._seen.resolved(batch))

    def take_part_in_sampling(self, step: int) -> None:
        """A rank's share of `sample`: the logits of its part of the vocabulary."""
        current = self._current(step)
        if current.failure is not None:
            raise current.failure
        with torch.inference_mode():
            for _ in self._logits(current):
                continue
        del self._steps[step]

    def _current(self, step: int) -> _Step:
        if step not in self._steps:
            raise BackendError(f"step {step} is not in flight; forward has to come first")
        return self._steps[step]

    def _run(self, batch: Batch) -> Tensor:
        """Hidden states [T, hidden_size] after the final norm."""
        assert self._kv is not None, "allocate_kv comes before forward"
        if not len(batch.token_ids):
            return self._no_hidden()
        if self._graphs is not None and (captured := self._graphs.run(batch)) is not None:
            return captured
        num_seqs = len(batch.slots)
        bucket = min(size for size in self._shape.buckets if size >= num_seqs)
        view = StepView.of(batch, self._kv.block_size, bucket, self._device.torch_device)
        with torch.inference_mode():
            adapters = self._adapters.step(batch, view.adapters) if self._adapters else None
            return self._forward(view, adapters)

    def _forward_captured(self, view: StepView) -> Tensor:
        """Of decodes whose adapters, too, change on the device before each replay."""
        return self._forward(view, self._adapters.captured_step(view.adapters) if self._adapters else None)

    def _forward(self, view: StepView, adapters: StepAdapters | None) -> Tensor:
        """One pass. Nothing in it waits for the device where all sequences decode: it may be captured."""
        assert self._decoder is not None, "load comes before forward"
        self.ops.forget_angles()
        newest = self._newest.index_select(0, view.token_slots)
        token_ids = torch.where(view.token_ids < 0, newest, view.token_ids)
        hidden: Tensor = self._decoder.forward(token_ids, view.positions, view, adapters)
        return hidden

    def _logits(self, current: _Step) -> Iterator[Tensor]:
        assert current.hidden is not None
        return self._pieces_of_logits(current.hidden)

    def _logits_rows(self) -> int:
        """As `DeviceRunner`."""
        return memory_plan.logits_rows(self._spec, self._shape.max_logits_rows)

    # ---- the rest --------------------------------------------------------------------------------

    def notices(self) -> tuple[str, ...]:
        """As `GivesNotices`: what the self-test at start replaced, what the warm-up found."""
        return (*twin_notices(self._table, self.ops.table, "cuda"), *self._notices)

    def close(self) -> None:
        """As the contract."""
        if self._graphs is not None:  # before the collectives that they may hold
            self._graphs.close()
        self._decoder = self._kv = self._graphs = self._adapters = None
        self._steps.clear()
        self.ops.release()
        self._device.release()
