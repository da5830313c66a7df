"""What the self-test runs: each operation over shapes that a model needs.

Caches hold what is not a number wherever nothing may be read; blocks are shuffled; sequences have three tiles
of keys and more, and splits of which several are not empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivet.runners.op_check import OpCase
from trivet.runners.op_sizes import OpSizes
from trivet_cuda.op_table import TWINS, OpTable
from trivet_cuda.paged_kv import KV_DTYPES, LayerKV
from trivet_cuda.tiles import extend_tiles
from trivet_cuda.weight_kinds import GROUP_SIZE, WeightKind

# Largest error over the largest value: sums in float32 in another order, rounded once. The interpreter is
# within a third of it; float32 on a device may add differently still.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
NUM_TOKENS = 560  # of the cache


@dataclass(frozen=True, slots=True)
class ModelShape(OpSizes):
    """Sizes that the operations are tested with."""

    kv_dtype: str = "auto"
    block_size: int = 16


class CaseMaker:
    """Random arguments on one device; the same for every table."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device, arch: int) -> None:
        self._shape, self._dtype, self._device, self._arch = shape, dtype, device, arch
        self._generator = torch.Generator().manual_seed(7)
        self._num_blocks = 2 + -(-NUM_TOKENS // shape.block_size)

    def cases(self) -> Iterator[OpCase[OpTable]]:
        """All but those of quantised weights."""
        case, cache = self._write_kv()
        yield case
        yield self._decode(cache, (1, 300, 0), num_splits=1)
        yield self._decode(cache, (1, 300, 0, 520), num_splits=4)
        yield self._extend(cache, (5, 130), (5, 130))
        yield self._extend(cache, (1, 7, 60), (300, 135, 355))
        yield from self._norms()
        yield self._rope()
        yield self._swiglu()

    def quantised_cases(self, kinds: Sequence[WeightKind] = tuple(WeightKind)) -> Iterator[OpCase[OpTable]]:
        """Of the given kinds of weights; two numbers of rows, for they have tiles of their own."""
        for kind in kinds:
            if kind != WeightKind.PLAIN:
                for num_rows in (3, 20):
                    yield self._matmul(kind, num_rows)

    # ---- arguments -------------------------------------------------------------------------------

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self._generator)
        return values.to(dtype or self._dtype).to(self._device)

    def _empty(self) -> LayerKV:
        """Every slot poisoned."""
        shape = self._shape
        dtype = self._dtype if shape.kv_dtype == "auto" else KV_DTYPES[shape.kv_dtype]
        tokens = (self._num_blocks, shape.block_size, shape.num_kv_heads)
        poison = 113.0 if dtype == torch.int8 else torch.nan
        keys, values = (
            torch.full((*tokens, shape.head_dim), poison).to(dtype).to(self._device) for _ in range(2)
        )
        if dtype != torch.int8:
            return LayerKV(keys, values, None, None)
        scales = [torch.full(tokens, torch.nan, device=self._device) for _ in range(2)]
        return LayerKV(keys, values, *scales)

    def _write_kv(self) -> tuple[OpCase[OpTable], LayerKV]:
        """The case, and the cache of the other cases: every block but the first and the last is full."""
        shape = self._shape
        num_tokens = (self._num_blocks - 2) * shape.block_size
        new = [self._random(num_tokens + 1, shape.num_kv_heads, shape.head_dim) for _ in range(2)]
        slots = torch.arange(num_tokens + 1, dtype=torch.int32) + shape.block_size
        slots[-1] = -1
        slots = slots.to(self._device)

        def filled(ops: OpTable) -> LayerKV:
            cache = self._empty()
            ops.write_kv(*new, *cache, slots)
            return cache

        def run(ops: OpTable) -> Sequence[Tensor]:
            cache = filled(ops)
            return [each[1:-1].float() for each in cache if each is not None]

        return OpCase(("write_kv",), "whole blocks and padding", run), filled(TWINS)

    def _table(self, lengths: Sequence[int]) -> Tensor:
        """Shuffled blocks; behind a sequence's own stands the poisoned last one."""
        counts = [-(-length // self._shape.block_size) for length in lengths]
        order = 1 + torch.randperm(self._num_blocks - 2, generator=self._generator).int()
        table = torch.full((len(counts), max(counts) + 1), self._num_blocks - 1, dtype=torch.int32)
        for row, count in enumerate(counts):
            table[row, :count] = order[:count].roll(row)
        return table.to(self._device)

    def _settings(self) -> tuple[float, int, float]:
        return self._shape.head_dim**-0.5, self._shape.window, self._shape.soft_cap

    def _decode(self, cache: LayerKV, lengths: Sequence[int], num_splits: int) -> OpCase[OpTable]:
        shape = self._shape
        query = self._random(len(lengths), shape.num_heads, shape.head_dim)
        table = self._table(lengths)
        seq_lens = torch.tensor(lengths, dtype=torch.int32).to(self._device)

        def run(ops: OpTable) -> Sequence[Tensor]:
            where = (*cache, table, seq_lens)
            return (ops.decode_attention(query, *where, *self._settings(), num_splits, self._arch),)

        return OpCase(("decode_attention",), f"one token each, {num_splits} splits", run)

    def _extend(self, cache: LayerKV, query_lens: Sequence[int], lengths: Sequence[int]) -> OpCase[OpTable]:
        shape = self._shape
        query = self._random(sum(query_lens), shape.num_heads, shape.head_dim)
        table = self._table(lengths)
        starts, seq_lens = (
            torch.tensor(values, dtype=torch.int32).to(self._device)
            for values in ([0, *torch.tensor(query_lens).cumsum(0).tolist()], lengths)
        )
        group = shape.num_heads // shape.num_kv_heads
        cache_dtype = self._dtype if shape.kv_dtype == "auto" else KV_DTYPES[shape.kv_dtype]
        step = extend_tiles(self._arch, shape.head_dim, group, self._dtype, cache_dtype).tile_tokens
        rows = [(seq, first) for seq, length in enumerate(query_lens) for first in range(0, length, step)]
        tiles = torch.tensor(rows, dtype=torch.int32).to(self._device)

        def run(ops: OpTable) -> Sequence[Tensor]:
            where = (*cache, table, starts, seq_lens, tiles)
            return (ops.extend_attention(query, *where, *self._settings(), self._arch),)

        label = "whole prompts" if tuple(query_lens) == tuple(lengths) else "chunks over a cached prefix"
        return OpCase(("extend_attention",), label, run)

    def _norms(self) -> Iterator[OpCase[OpTable]]:
        x, dtype = self._random(9, self._shape.hidden_size), self._dtype
        residual = self._random(9, self._shape.hidden_size, dtype=torch.float32)
        weight = self._random(self._shape.hidden_size)
        yield OpCase(("rms_norm",), "nine tokens", lambda ops: (ops.rms_norm(residual, weight, 1e-5, dtype),))
        yield OpCase(
            ("add_rms_norm",),
            "nine tokens",
            lambda ops: ops.add_rms_norm(x, residual, weight, 1e-5, dtype),
        )

    def _rope(self) -> OpCase[OpTable]:
        shape = self._shape
        x = self._random(9, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        heads = x[:, : shape.num_heads + shape.num_kv_heads]
        angles = torch.rand((9, shape.rope_dim // 2), generator=self._generator) * 6
        cos, sin = angles.cos().to(self._device), angles.sin().to(self._device)
        weights = [self._random(shape.head_dim) if shape.has_qk_norm else None for _ in range(2)]
        label = "neighbouring pairs" if shape.interleaved else "two halves"
        return OpCase(
            ("norm_rope",),
            label + (" behind a norm" if shape.has_qk_norm else ""),
            lambda ops: (ops.norm_rope(heads, shape.num_heads, *weights, 1e-5, cos, sin, shape.interleaved),),
        )

    def _swiglu(self) -> OpCase[OpTable]:
        x = self._random(9, 2 * self._shape.intermediate_size)
        return OpCase(("swiglu",), "nine tokens", lambda ops: (ops.swiglu(x),))

    def _matmul(self, kind: WeightKind, num_rows: int) -> OpCase[OpTable]:
        columns = self._shape.intermediate_size
        inner = self._shape.hidden_size // GROUP_SIZE * GROUP_SIZE
        x = self._random(num_rows, inner)
        groups = (inner // GROUP_SIZE, columns)
        scales = (torch.rand(groups, generator=self._generator) * 0.02).half().to(self._device)
        offsets = None
        if kind == WeightKind.W4A16:
            offsets = self._random(*groups, dtype=torch.float16)
            low, high, rows, dtype = -(1 << 31), 1 << 31, inner // 8, torch.int32
        else:
            low, high, rows, dtype = -127, 128, inner, torch.int8
        weight = torch.randint(low, high, (rows, columns), generator=self._generator).to(dtype)
        weight = weight.to(self._device)
        return OpCase(
            ("group_matmul",),
            f"{kind}, {num_rows} tokens",
            lambda ops: (ops.group_matmul(x, weight, scales, offsets, self._arch),),
        )
