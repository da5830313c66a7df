"""What the plain backend holds and computes: a dense decoder over a paged KV cache, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trivet.contract import ON_DEVICE, Batch, BlockCopy, MemoryPlan, PoolKind
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import MLP, Attention, ModelSpec, Norm

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


def kv_width(attention: Attention) -> int:
    """Elements of a token's K, and of its V, in one layer."""
    return attention.num_kv_heads * attention.head_dim


class PlainModel:
    """Weights, cache and newest tokens, and the arithmetic of one step over them."""

    def __init__(self, spec: ModelSpec, plan: MemoryPlan, max_num_seqs: int) -> None:
        self.spec, self.plan = spec, plan
        self.block_size = plan.kv.block_size
        self.weights: dict[str, Float32] = {}
        self.kv: list[Float32] = []  # a layer: [num_blocks, block_size, 2, num_kv_heads, head_dim]
        self.host_kv: list[Float32] = []  # the same with num_host_blocks
        self.adapters: dict[int, dict[str, Float32]] = {}  # by slot, then by name
        self.token_adapters = np.zeros(0, np.int32)  # [T] of the step
        self.newest = np.zeros(max_num_seqs, np.int32)  # of each slot

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

    def run_layers(self, batch: Batch) -> Float32:
        """Hidden states after the final norm [T, hidden_size]."""
        self.token_adapters = self.adapters_of_tokens(batch)
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
        for slot, adapter in self.adapters.items():
            rows = np.flatnonzero(self.token_adapters == slot)
            if f"{name}.lora_a" in adapter:
                y[rows] += (x[rows] @ adapter[f"{name}.lora_a"].T) @ adapter[f"{name}.lora_b"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def adapters_of_tokens(self, batch: Batch) -> Int32:
        """The slot of each token's adapter. [T]"""
        slots = np.zeros_like(batch.slots) if batch.adapters is None else batch.adapters
        return np.repeat(slots, np.diff(batch.query_start_loc))
