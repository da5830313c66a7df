"""The contract in NumPy: a whole backend to read beside your own, and to break on purpose.

Dense decoders only, in float32, one token after the other, as slow as it looks. Like an accelerator it keeps
two steps in flight and carries a step out as late as it may: when it is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil

from trivet.contract import (
    Batch,
    DeviceInfo,
    Feature,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    Runner,
    RunnerConfig,
    Sampling,
    StepOutput,
)
from trivet.contract_suite.plain_model import Float32, Int32, PlainModel, kv_width
from trivet.engine.sampler import sample_rows
from trivet.errors import DoesNotFit, Unsupported, WeightsError
from trivet.models.spec import ModelSpec
from trivet.runners.adapter_memory import adapter_parts
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader

BLOCK_SIZE = 4  # tokens
MAX_NUM_BATCHED_TOKENS = 256


class PlainBackend:
    """The torch-free half."""

    name = "plain"

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """The host."""
        memory = psutil.virtual_memory()
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid="plain",
                name="NumPy",
                arch="any",
                total_bytes=memory.total,
                free_bytes=memory.available,
                dtypes=frozenset({"f32"}),
            )
        ]

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Nothing."""
        return {}

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """Raises: Unsupported."""
        for name, value, known in (
            ("dtype", config.dtype, ("auto", "f32")),
            ("kv_dtype", config.kv_dtype, ("auto", "f32")),
            ("tensor_parallel", config.tensor_parallel, (1,)),
        ):
            if value not in known:
                raise Unsupported(f"{name} is {value!r}; the plain backend has {known[-1]!r} only")
        for option in config.options:
            raise Unsupported(f"option {option!r} is unknown to the plain backend, which has none")

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """Weights, and a sequence of full length for each of max_num_seqs unless told otherwise."""
        block_size = config.block_size or BLOCK_SIZE
        max_model_len = config.max_model_len or spec.max_position
        token_bytes = sum(8 * kv_width(spec.layer(i).attention) for i in range(spec.num_layers))
        group = KVGroup(KVKind.FULL, tuple(range(spec.num_layers)), "f32", token_bytes)
        kv = KVCacheSpec(block_size, (group,))
        num_blocks = config.num_blocks
        if num_blocks is None:
            num_blocks = 1 + config.max_num_seqs * -(-max_model_len // block_size)
        if num_blocks < 2:
            raise DoesNotFit(
                f"num_blocks {num_blocks} leaves no block beside the scratch block; use 2 or more"
            )
        num_host_blocks = config.swap_bytes // kv.block_bytes
        parts = (
            MemoryPart("weights", 4 * sum(int(np.prod(tensor.shape)) for tensor in weights.tensors)),
            *adapter_parts(spec, config.adapters, 4),
            MemoryPart("kv", num_blocks * kv.block_bytes),
            MemoryPart("host_kv", num_host_blocks * kv.block_bytes),
        )
        needed, free = sum(part.size_bytes for part in parts), devices[0].free_bytes
        if needed > free:
            raise DoesNotFit(f"the plan needs {needed} bytes and {free} are free; lower num_blocks")
        budget = config.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS
        return MemoryPlan(kv, (num_blocks,), num_host_blocks, parts, budget, max_model_len)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """As the contract."""
        return PlainRunner(spec, config, plan)


@dataclass
class QueuedStep:
    """A step that is submitted and not collected."""

    batch: Batch
    sampling: Sampling | None = None


class PlainRunner(PlainModel):
    """Its methods do one thing each, so that a test can replace one by a wrong one."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.HOST_KV, Feature.LORA})
    max_in_flight = 2

    def __init__(self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan) -> None:
        super().__init__(spec, plan, config.max_num_seqs)
        self.slots = config.adapters
        self.queue: deque[QueuedStep] = deque()

    # ---- start and end

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """All tensors as float32."""
        with TensorReader(weights) as reader:
            done = 0
            for tensor in weights.tensors:
                self.weights[tensor.name] = np.array(reader.float32(tensor.name))
                done += tensor.size_bytes
                on_progress(done, weights.size_bytes)

    def allocate_kv(self) -> None:
        """Raises: DoesNotFit."""
        needed, free = self.plan.num_blocks[0] * self.plan.kv.block_bytes, psutil.virtual_memory().available
        if needed > free:
            raise DoesNotFit(f"the KV cache needs {needed} bytes and {free} are free; lower num_blocks")
        for index in range(self.spec.num_layers):
            attention = self.spec.layer(index).attention
            shape = (self.block_size, 2, attention.num_kv_heads, attention.head_dim)
            self.kv.append(np.zeros((self.plan.num_blocks[0], *shape), np.float32))
            self.host_kv.append(np.zeros((self.plan.num_host_blocks, *shape), np.float32))

    def warm_up(self) -> None:
        """Nothing is built."""

    def host_buffer(self, num_int32: int) -> Int32:
        """The device is the host."""
        return np.empty(num_int32, np.int32)

    def memory(self) -> tuple[MemoryPart, ...]:
        """As the contract."""
        return (
            MemoryPart("weights", sum(weight.nbytes for weight in self.weights.values())),
            *adapter_parts(self.spec, self.slots, 4),
            MemoryPart("kv", sum(layer.nbytes for layer in self.kv)),
            MemoryPart("host_kv", sum(layer.nbytes for layer in self.host_kv)),
        )

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """All as float32. Raises: Unsupported, WeightsError."""
        self.unload_adapter(slot)
        ranks = [tensor.shape[0] for tensor in weights.tensors if tensor.name.endswith(".lora_a")]
        if not 1 <= slot <= self.slots.num_slots or max(ranks) > self.slots.max_rank:
            raise Unsupported(f"slot {slot} with rank {max(ranks)} is beyond what was planned: {self.slots}")
        with TensorReader(weights) as reader:
            tensors = {tensor.name: np.array(reader.float32(tensor.name)) for tensor in weights.tensors}
        for name, values in tensors.items():
            if not np.isfinite(values).all():
                raise WeightsError(f"tensor {name!r} of the adapter holds values that are not finite")
        self.adapters[slot] = tensors

    def unload_adapter(self, slot: int) -> None:
        """As the contract."""
        self.adapters.pop(slot, None)

    def close(self) -> None:
        """As the contract."""
        self.weights, self.kv = {}, []
        self.queue.clear()

    # ---- steps

    def forward(self, batch: Batch) -> None:
        """Queued."""
        self.queue.append(QueuedStep(batch))

    def sample(self, step: int, sampling: Sampling) -> None:
        """Queued behind its forward."""
        self.queue[-1].sampling = sampling

    def collect(self, step: int) -> StepOutput:
        """Carries the oldest step out: copies, forward, sample, newest token of each slot."""
        queued = self.queue.popleft()
        assert queued.batch.step == step
        assert queued.sampling is not None
        batch, sampling = queued.batch, queued.sampling
        self.copy_blocks(batch)
        hidden = self.run_layers(batch)
        logits = self.head(hidden[batch.logits_rows])
        output = replace(self.draw(logits, sampling, batch), pooled=self.pool(hidden, batch))
        self.keep_newest(batch, sampling, output)
        return output

    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        """All randomness is in `sampling.uniform` (rule 5)."""
        return sample_rows(logits, sampling, batch.row_seqs, len(batch.slots), batch.step)

    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        """The last token that counts, of each sequence that drew one."""
        for index, count in enumerate(output.num_tokens):
            rows = np.flatnonzero((batch.row_seqs == index) & sampling.draws)
            if count:
                self.newest[batch.slots[index]] = output.token_ids[rows[count - 1]]
