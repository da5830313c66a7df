"""Paged attention over ragged batches, against the sum written out per token in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.contract import Batch, BlockCopy
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm
from trivet.models.torch_attention import (
    MAX_PADDING_SLOTS,
    PagedKV,
    PagedStep,
    alibi_slopes,
    paged_attention,
)

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
PLAIN = Attention(HEADS, KV_HEADS, DIM, 0.4, None)
NUM_BLOCKS = 700


def _spec(attention: Attention) -> ModelSpec:
    return ModelSpec("test", 8, 8, 8, 4096, (Layer(attention, MLP(8)),), (0,), Norm())


@dataclass
class Ragged:
    """Sequences of `lengths` tokens in scattered blocks, the last `queries` of each in this step."""

    queries: list[int]
    lengths: list[int]
    attention: Attention = PLAIN
    kv_dtype: torch.dtype = torch.float32
    workspace_blocks: int = NUM_BLOCKS
    is_consecutive: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.kv = PagedKV(_spec(self.attention), NUM_BLOCKS, BLOCK, self.kv_dtype, self.workspace_blocks)
        slots = torch.arange(NUM_BLOCKS * BLOCK)
        stale = torch.full((len(slots), KV_HEADS, DIM), math.nan)
        self.kv.write(0, slots, stale, stale)
        self.keys = [torch.randn(n, KV_HEADS, DIM, generator=generator) for n in self.lengths]
        self.values = [torch.randn(n, KV_HEADS, DIM, generator=generator) for n in self.lengths]
        self.q = torch.randn(sum(self.queries), HEADS, DIM, generator=generator)
        order = np.random.default_rng(self.seed).permutation(np.arange(1, NUM_BLOCKS))
        free = iter(np.sort(order) if self.is_consecutive else order)
        width = max(-(-n // BLOCK) for n in self.lengths)
        self.table = np.zeros((len(self.lengths), width), np.int32)
        for i, length in enumerate(self.lengths):
            blocks = -(-length // BLOCK)
            self.table[i, :blocks] = [next(free) for _ in range(blocks)]
            before = torch.arange(length - self.queries[i])
            slot = torch.from_numpy(self.table[i]).long()[before // BLOCK] * BLOCK + before % BLOCK
            self.kv.write(0, slot, self.keys[i][before], self.values[i][before])

    def run(self) -> Tensor:
        starts = np.concatenate([[0], np.cumsum(self.queries)]).astype(np.int32)
        positions = [np.arange(n - m, n) for n, m in zip(self.lengths, self.queries, strict=True)]
        batch = Batch(
            step=1,
            slots=np.arange(len(self.lengths), dtype=np.int32),
            query_start_loc=starts,
            seq_lens=np.array(self.lengths, np.int32),
            block_tables=(self.table,),
            token_ids=np.zeros(starts[-1], np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            logits_rows=np.zeros(0, np.int32),
            row_seqs=np.zeros(0, np.int32),
        )
        step = PagedStep(batch, BLOCK, self.workspace_blocks)
        k = torch.cat([x[n - m :] for x, n, m in zip(self.keys, self.lengths, self.queries, strict=True)])
        v = torch.cat([x[n - m :] for x, n, m in zip(self.values, self.lengths, self.queries, strict=True)])
        self.num_groups = len(step.groups(self.attention))
        return paged_attention(self.q, k, v, self.kv, 0, self.attention, step)

    def expected(self) -> Tensor:
        rows, at = [], 0
        for i, length in enumerate(self.lengths):
            for position in range(length - self.queries[i], length):
                rows.append(self._one(i, position, self.q[at].double()))
                at += 1
        return torch.stack(rows)

    def _one(self, i: int, position: int, q: Tensor) -> Tensor:
        spec = self.attention
        first = 0 if spec.window is None else max(0, position - spec.window + 1)
        seen = slice(first, position + 1)
        k = self.keys[i][seen].double().repeat_interleave(HEADS // KV_HEADS, 1)
        v = self.values[i][seen].double().repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("hd,khd->hk", q, k) * spec.scale
        if spec.soft_cap is not None:
            scores = (scores / spec.soft_cap).tanh() * spec.soft_cap
        if spec.alibi:
            distances = torch.arange(first, position + 1) - position
            scores = scores + torch.tensor(alibi_slopes(HEADS))[:, None] * distances
        return torch.einsum("hk,khd->hd", scores.softmax(-1), v)


KINDS = {
    "plain": PLAIN,
    "window": replace(PLAIN, window=6),
    "window of one": replace(PLAIN, window=1),
    "soft cap": replace(PLAIN, soft_cap=0.7),
    "alibi": replace(PLAIN, alibi=True),
    "alibi, window, cap": replace(PLAIN, alibi=True, window=6, soft_cap=0.7),
}
BATCHES = {
    "one token": ([1], [1]),
    "one decode": ([1], [13]),
    "decodes of one length": ([1, 1, 1], [9, 9, 9]),
    "decodes": ([1, 1, 1, 1], [3, 17, 1, 8]),
    "first chunk": ([11], [11]),
    "later chunk": ([5], [18]),
    "mixed": ([1, 1, 1, 3, 7, 12], [20, 1, 6, 3, 30, 13]),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_sees_its_own_sequence_up_to_itself(kind: str, batch: str) -> None:
    ragged = Ragged(*BATCHES[batch], attention=KINDS[kind])
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_consecutive_blocks_are_read_in_place_with_the_same_result(kind: str, batch: str) -> None:
    ragged = Ragged(*BATCHES[batch], attention=KINDS[kind], is_consecutive=True)
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)


def test_decodes_of_unlike_lengths_are_split_so_that_little_is_padding() -> None:
    ragged = Ragged([1] * 5, [MAX_PADDING_SLOTS, MAX_PADDING_SLOTS - 1, 9, 8, 7])
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)
    assert ragged.num_groups == 2


def test_a_small_workspace_takes_the_batch_in_several_calls() -> None:
    ragged = Ragged([1] * 7, [16, 15, 16, 3, 13, 1, 9], workspace_blocks=9)
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)
    assert ragged.num_groups > 2


def test_a_cache_in_bf16_under_a_float32_model_is_read_in_float32() -> None:
    ragged = Ragged(*BATCHES["mixed"], kv_dtype=torch.bfloat16)
    for tensors in (ragged.keys, ragged.values):
        tensors[:] = [tensor.bfloat16().float() for tensor in tensors]
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)


def test_blocks_are_copied_before_they_are_read() -> None:
    ragged = Ragged([1], [8])
    source, target = int(ragged.table[0, 0]), int(NUM_BLOCKS - 1)
    if target in ragged.table:
        target = next(i for i in range(1, NUM_BLOCKS) if i not in ragged.table)
    pairs = np.array([[source, target]], np.int32)
    ragged.kv.copy_blocks(BlockCopy(0, from_host=False, to_host=False, pairs=pairs))
    ragged.table[0, 0] = target
    torch.testing.assert_close(ragged.run().double(), ragged.expected(), atol=2e-5, rtol=1e-5)


def test_a_batch_without_tokens_gives_nothing() -> None:
    kv = PagedKV(_spec(PLAIN), 4, BLOCK, torch.float32, 4)
    none = np.zeros(0, np.int32)
    batch = Batch(1, none, np.zeros(1, np.int32), none, (np.zeros((0, 0), np.int32),), none, none, none, none)
    q, k = torch.empty(0, HEADS, DIM), torch.empty(0, KV_HEADS, DIM)
    assert paged_attention(q, k, k, kv, 0, PLAIN, PagedStep(batch, BLOCK, 4)).shape == (0, HEADS, DIM)


def test_slopes_of_heads_beyond_a_power_of_two_take_the_odd_steps() -> None:
    assert alibi_slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
