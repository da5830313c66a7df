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
from numpy.typing import NDArray

from trivet.contract import (
    ON_DEVICE,
    Batch,
    BlockCopy,
    DeviceInfo,
    Feature,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    PoolKind,
    Runner,
    RunnerConfig,
    Sampling,
    StepOutput,
)
from trivet.engine.sampler import sample_rows
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import MLP, Attention, ModelSpec, Norm
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

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


def kv_width(attention: Attention) -> int:
    """Elements of a token's K, and of its V, in one layer."""
    return attention.num_kv_heads * attention.head_dim


@dataclass
class QueuedStep:
    """A step that is submitted and not collected."""

    batch: Batch
    sampling: Sampling | None = None


class PlainRunner:
    """Methods that do one thing each, so that a test can replace one by a wrong one."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.HOST_KV})
    max_in_flight = 2

    def __init__(self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan) -> None:
        self.spec, self.plan = spec, plan
        self.block_size = plan.kv.block_size
        self.weights: dict[str, Float32] = {}
        self.kv: list[Float32] = []  # a layer: [num_blocks, block_size, 2, num_kv_heads, head_dim]
        self.host_kv: list[Float32] = []  # the same with num_host_blocks
        self.newest = np.zeros(config.max_num_seqs, np.int32)  # of each slot
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
            MemoryPart("kv", sum(layer.nbytes for layer in self.kv)),
            MemoryPart("host_kv", sum(layer.nbytes for layer in self.host_kv)),
        )

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """Raises: Unsupported."""
        raise Unsupported("the plain backend has no adapters")

    def unload_adapter(self, slot: int) -> None:
        """Raises: Unsupported."""
        raise Unsupported("the plain backend has no adapters")

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

    def copy_blocks(self, batch: Batch) -> None:
        """Before the forward of their batch (rule 1)."""
        for copy in batch.copies:
            self.copy_one(copy)

    def copy_one(self, copy: BlockCopy) -> None:
        """Within the cache, to the host or from it."""
        sources = self.host_kv if copy.from_host else self.kv
        targets = self.host_kv if copy.to_host else self.kv
        for source, target in zip(sources, targets, strict=True):
            target[copy.pairs[:, 1]] = source[copy.pairs[:, 0]]

    def pool(self, hidden: Float32, batch: Batch) -> Float32 | None:
        """The last token of each sequence in this step, or the sum of all. [S, hidden_size]"""
        if batch.pooling is None:
            return None
        pooled = np.zeros((len(batch.slots), hidden.shape[1]), np.float32)
        for index, kind in enumerate(batch.pooling):
            own = hidden[batch.query_start_loc[index] : batch.query_start_loc[index + 1]]
            if kind == PoolKind.LAST:
                pooled[index] = own[-1]
            elif kind == PoolKind.SUM:
                pooled[index] = own.sum(axis=0)
        return pooled

    def token_ids(self, batch: Batch) -> Int32:
        """ON_DEVICE is the newest token of the slot, which a step before this one has drawn."""
        slots = np.repeat(batch.slots, np.diff(batch.query_start_loc))
        tokens: Int32 = np.where(batch.token_ids == ON_DEVICE, self.newest[slots], batch.token_ids)
        return tokens

    def draw(self, logits: Float32, sampling: Sampling, batch: Batch) -> StepOutput:
        """All randomness is in `sampling.uniform` (rule 5)."""
        return sample_rows(logits, sampling, batch.row_seqs, len(batch.slots), batch.step)

    def keep_newest(self, batch: Batch, sampling: Sampling, output: StepOutput) -> None:
        """The last token that counts, of each sequence that drew one."""
        for index, count in enumerate(output.num_tokens):
            rows = np.flatnonzero((batch.row_seqs == index) & sampling.draws)
            if count:
                self.newest[batch.slots[index]] = output.token_ids[rows[count - 1]]

    # ---- the model

    def run_layers(self, batch: Batch) -> Float32:
        """Hidden states after the final norm [T, hidden_size]."""
        x = self.weights["embed.weight"][self.token_ids(batch)] * np.float32(self.spec.embed_scale)
        for index in range(self.spec.num_layers):
            layer, name = self.spec.layer(index), f"layers.{index}"
            h = self.norm(x, f"{name}.attention_norm", self.spec.norm)
            x = x + self.attention(h, index, layer.attention, batch)
            h = self.norm(x, f"{name}.mlp_norm", self.spec.norm)
            assert isinstance(layer.mlp, MLP)
            gate, up = self.linear(h, f"{name}.gate"), self.linear(h, f"{name}.up")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{name}.down")
        return self.norm(x, "norm", self.spec.norm)

    def head(self, hidden: Float32) -> Float32:
        """Logits. [R, vocab_size]"""
        name = "embed.weight" if self.spec.tie_embeddings else "head.weight"
        logits: Float32 = hidden @ self.weights[name].T
        return logits[:, : self.spec.num_tokens]

    def attention(self, h: Float32, index: int, spec: Attention, batch: Batch) -> Float32:
        """All writes, then all reads (rule 2). [T, hidden_size]"""
        name = f"layers.{index}"
        heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
        q, k, v = (
            self.linear(h, f"{name}.{part}").reshape(len(h), count, spec.head_dim)
            for part, count in heads.items()
        )
        if spec.qk_norm is not None:
            q = self.norm(q, f"{name}.q_norm", spec.qk_norm)
            k = self.norm(k, f"{name}.k_norm", spec.qk_norm)
        positions = self.rope_positions(batch)
        q, k = self.rotate(q, positions, spec), self.rotate(k, positions, spec)
        self.write_kv(index, k, v, batch)
        attended = self.read_kv(index, q, spec, batch)
        return self.linear(attended.reshape(len(h), spec.num_heads * spec.head_dim), f"{name}.o")

    def rope_positions(self, batch: Batch) -> Int32:
        return batch.positions

    def write_kv(self, index: int, k: Float32, v: Float32, batch: Batch) -> None:
        """The KV slot of position p is block_table[p // block_size], offset p % block_size."""
        owners = np.repeat(np.arange(len(batch.slots)), np.diff(batch.query_start_loc))
        for token, (owner, position) in enumerate(zip(owners, batch.positions, strict=True)):
            block = batch.block_tables[0][owner, position // self.block_size]
            self.kv[index][block, position % self.block_size] = np.stack([k[token], v[token]])

    def read_kv(self, index: int, q: Float32, spec: Attention, batch: Batch) -> Float32:
        """Each token attends to its sequence up to itself. [T, num_heads, head_dim]"""
        out = np.empty_like(q)
        owners = np.repeat(np.arange(len(batch.slots)), np.diff(batch.query_start_loc))
        for token, (owner, position) in enumerate(zip(owners, batch.positions, strict=True)):
            first = 0 if spec.window is None else max(0, int(position) + 1 - spec.window)
            k, v = self.gather(index, batch.block_tables[0][owner], first, int(position) + 1)
            out[token] = self.attend(q[token], k, v, spec)
        return out

    def gather(self, index: int, table: Int32, first: int, stop: int) -> tuple[Float32, Float32]:
        """K and V of positions first ... stop - 1; slots behind are not looked at (rule 3)."""
        positions = np.arange(first, stop)
        rows = self.kv[index][table[positions // self.block_size], positions % self.block_size]
        return rows[:, 0], rows[:, 1]

    def attend(self, q: Float32, k: Float32, v: Float32, spec: Attention) -> Float32:
        """Query [num_heads, head_dim] over keys and values [n, num_kv_heads, head_dim]."""
        out = np.empty_like(q)
        group = spec.num_heads // spec.num_kv_heads
        for head in range(spec.num_heads):
            scores = k[:, head // group] @ q[head] * np.float32(spec.scale)
            shares = np.exp(scores - scores.max())
            out[head] = (shares / shares.sum()) @ v[:, head // group]
        return out

    def rotate(self, x: Float32, positions: Int32, spec: Attention) -> Float32:
        """Rotary embedding of halves. [T, heads, head_dim]"""
        assert spec.rope is not None
        frequencies, factor = inverse_frequencies(spec.rope, self.plan.max_model_len)
        angles = positions[:, None, None].astype(np.float32) * frequencies
        cos, sin = np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(np.float32)

    def norm(self, x: Float32, name: str, spec: Norm) -> Float32:
        """RMS norm over the last axis."""
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        scale = np.float32(1) / np.sqrt(mean + np.float32(spec.eps))
        normed: Float32 = (x * scale * self.weights[f"{name}.weight"]).astype(np.float32)
        return normed

    def linear(self, x: Float32, name: str) -> Float32:
        """Product with the transposed weight, plus the bias where there is one."""
        y: Float32 = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y
