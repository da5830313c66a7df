"""What the self-test runs: each operation over shapes that a model needs.

Caches hold what is not a number wherever nothing may be read or written; blocks are shuffled; sequences have
three tiles of keys and more, more than the model's window, and splits of which several are not empty; queries
are large where scores are capped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trivet.runners.op_check import OpCase
from trivet.runners.op_sizes import OpSizes
from trivet_cuda.op_table import TWINS, OpTable
from trivet_cuda.paged_kv import KV_DTYPES, LayerKV
from trivet_cuda.tiles import extend_tiles
from trivet_cuda.twins import FP8_MAX
from trivet_cuda.weight_kinds import GROUP_SIZE, WeightKind

# Largest error over the largest value of a row: sums in float32 in another order, rounded once. The
# interpreter is within a third of it; float32 on a device may add differently still.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
HALF_A_STEP = 0.5 / 127 + 1e-4  # of int8 over the largest value of its row, with float32's own rounding
NUM_TOKENS = 520  # of the longest sequence, where there is no longer window
BEYOND_WINDOW = 75  # tokens
POISON = 113.0  # in int8, which has no NaN


@dataclass(frozen=True, slots=True, order=True)
class Product:
    """With a quantised matrix."""

    kind: WeightKind
    num_inner: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class ModelShape(OpSizes):
    """Sizes that the operations are tested with."""

    kv_dtype: str = "auto"
    block_size: int = 16
    max_model_len: int = 4096
    num_splits: tuple[int, ...] = (1, 4)  # of a decode's keys, as the steps that will come have them
    products: tuple[Product, ...] | None = None  # quantised ones; None for the four of a layer, of each kind

    def every_product(self) -> tuple[Product, ...]:
        """Those that are given, or qkv, o, gate with up, and down."""
        if self.products is not None:
            return self.products
        inner, hidden = self.num_heads * self.head_dim, self.hidden_size
        qkv = inner + 2 * self.num_kv_heads * self.head_dim
        sizes = [(hidden, qkv), (inner, hidden), (hidden, 2 * self.intermediate_size)]
        sizes.append((self.intermediate_size, hidden))
        kinds = [kind for kind in WeightKind if kind != WeightKind.PLAIN]
        return tuple(Product(kind, *size) for kind in kinds for size in sizes if size[0] % GROUP_SIZE == 0)

    @property
    def longest(self) -> int:
        """Tokens of a sequence of which the window, if it can matter at all, hides some."""
        if 0 < self.window < self.max_model_len:
            return max(NUM_TOKENS, self.window + BEYOND_WINDOW)
        return NUM_TOKENS


class CaseMaker:
    """Random arguments on one device; the same for every table."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device, arch: int) -> None:
        self._shape, self._dtype, self._device, self._arch = shape, dtype, device, arch
        self._generator = torch.Generator().manual_seed(7)
        # The first is scratch and the last poisoned.
        self._num_blocks = 2 + -(-(shape.longest + 40) // shape.block_size)

    def cases(self) -> Iterator[OpCase[OpTable]]:
        """All but those of quantised weights."""
        case, cache = self._write_kv()
        yield case
        longest = self._shape.longest
        for num_splits in self._shape.num_splits:
            yield self._decode(cache, (1, 300, 0, longest), num_splits)
        yield self._extend(cache, (5, 130), (5, 130))
        yield self._extend(cache, (1, 7, 60), (300, 135, longest))
        yield from self._norms()
        yield self._rope()
        yield self._swiglu()
        yield self._write_nan()

    def quantised_cases(self) -> Iterator[OpCase[OpTable]]:
        """Products with quantised weights; two numbers of rows, for they have tiles of their own."""
        for product in self._shape.every_product():
            yield from self.matmuls(product)

    # ---- arguments -------------------------------------------------------------------------------

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self._generator)
        return values.to(dtype or self._dtype).to(self._device)

    def _whole(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Numbers from `low` to below `high`."""
        return torch.randint(low, high, shape, generator=self._generator).to(dtype).to(self._device)

    def _empty(self) -> LayerKV:
        """Every slot poisoned, and a block before the first, where a slot of -1 would be."""
        shape = self._shape
        dtype = self._kv_dtype
        tokens = (1 + self._num_blocks, shape.block_size, shape.num_kv_heads)
        poison = POISON if dtype == torch.int8 else torch.nan
        keys, values = (
            torch.full((*tokens, shape.head_dim), poison).to(dtype).to(self._device) for _ in range(2)
        )
        if dtype != torch.int8:
            return LayerKV(keys[1:], values[1:], None, None)
        scales = [torch.full(tokens, torch.nan, device=self._device)[1:] for _ in range(2)]
        return LayerKV(keys[1:], values[1:], *scales)

    def _write_kv(self) -> tuple[OpCase[OpTable], LayerKV]:
        """The case, and the cache of the other cases: every block but the first and the last is full.

        What is stored is compared with what was given: a value halfway between two of int8 may go either way.
        """
        shape, dtype = self._shape, self._kv_dtype
        num_tokens = (self._num_blocks - 2) * shape.block_size
        both = self._random(num_tokens + 1, 2 * shape.num_kv_heads, shape.head_dim)
        new = (
            both[:, : shape.num_kv_heads],
            both[:, shape.num_kv_heads :],
        )  # parts of one product, as a layer has them
        slots = torch.arange(num_tokens + 1, dtype=torch.int32) + shape.block_size
        slots[-1] = -1
        slots = slots.to(self._device)

        def filled(ops: OpTable) -> LayerKV:
            cache = self._empty()
            ops.write_kv(*new, *cache, slots)
            return cache

        def run(ops: OpTable) -> Sequence[Tensor]:
            return _stored(filled(ops))

        def wanted() -> Sequence[Tensor]:
            rounded = [values.float() for values in new]
            if dtype == torch.float8_e4m3fn:
                rounded = [values.clamp(-FP8_MAX, FP8_MAX).to(dtype).float() for values in rounded]
            blocks = (self._num_blocks - 2, shape.block_size, shape.num_kv_heads, shape.head_dim)
            return [*(values[:-1].view(blocks) for values in rounded), torch.zeros(2, 1)]

        allowed = HALF_A_STEP if dtype == torch.int8 else 1e-6
        case = OpCase(("write_kv",), "whole blocks and padding", run, wanted, allowed)
        return case, filled(TWINS)

    def _write_nan(self) -> OpCase[OpTable]:
        """What of two tokens is read as NaN, of which one has a NaN in its keys and its values."""
        shape = self._shape
        new = [self._random(2, shape.num_kv_heads, shape.head_dim) for _ in range(2)]
        for values in new:
            values[1, -1, 3] = torch.nan
        slots = torch.tensor([0, 1], dtype=torch.int32).to(self._device)

        def run(ops: OpTable) -> Sequence[Tensor]:
            cache = self._empty()
            ops.write_kv(*new, *cache, slots)
            keys, values = (stored[0, :2].float() for stored in (cache.keys, cache.values))
            if cache.key_scales is not None and cache.value_scales is not None:
                keys = keys * cache.key_scales[0, :2, :, None]
                values = values * cache.value_scales[0, :2, :, None]
            return keys.isnan().float(), values.isnan().float()

        return OpCase(("write_kv",), "a value that is no number", run)

    def _table(self, lengths: Sequence[int]) -> Tensor:
        """Shuffled blocks; behind a sequence's own stands the poisoned last one."""
        counts = [-(-length // self._shape.block_size) for length in lengths]
        order = 1 + torch.randperm(self._num_blocks - 2, generator=self._generator).int()
        table = torch.full((len(counts), max(counts) + 1), self._num_blocks - 1, dtype=torch.int32)
        for row, count in enumerate(counts):
            table[row, :count] = order[:count].roll(row)
        return table.to(self._device)

    @property
    def _kv_dtype(self) -> torch.dtype:
        kv_dtype = self._shape.kv_dtype
        return self._dtype if kv_dtype == "auto" else KV_DTYPES[kv_dtype]

    def _queries(self, count: int) -> Tensor:
        """Part of a product, as a layer has them.

        Where scores are capped, many reach the cap: half of it is their standard deviation.
        """
        shape = self._shape
        size = max(1.0, shape.soft_cap / 2)
        heads = shape.num_heads + 2 * shape.num_kv_heads
        values = self._random(count, heads, shape.head_dim, dtype=torch.float32) * size
        return values.to(self._dtype)[:, : shape.num_heads]

    def _settings(self) -> tuple[float, int, float]:
        return self._shape.head_dim**-0.5, self._shape.window, self._shape.soft_cap

    def _decode(self, cache: LayerKV, lengths: Sequence[int], num_splits: int) -> OpCase[OpTable]:
        query = self._queries(len(lengths))
        table = self._table(lengths)
        seq_lens = torch.tensor(lengths, dtype=torch.int32).to(self._device)

        def run(ops: OpTable) -> Sequence[Tensor]:
            where = (*cache, table, seq_lens)
            return (ops.decode_attention(query, *where, *self._settings(), num_splits, self._arch),)

        return OpCase(("decode_attention",), f"one token each, {num_splits} splits", run)

    def _extend(self, cache: LayerKV, query_lens: Sequence[int], lengths: Sequence[int]) -> OpCase[OpTable]:
        shape = self._shape
        query = self._queries(sum(query_lens))
        table = self._table(lengths)
        starts, seq_lens = (
            torch.tensor(values, dtype=torch.int32).to(self._device)
            for values in ([0, *torch.tensor(query_lens).cumsum(0).tolist()], lengths)
        )
        group = shape.num_heads // shape.num_kv_heads
        step = extend_tiles(self._arch, shape.head_dim, group, self._dtype, self._kv_dtype).tile_tokens
        rows = [(seq, first) for seq, length in enumerate(query_lens) for first in range(0, length, step)]
        tiles = torch.tensor(rows, dtype=torch.int32).to(self._device)

        def run(ops: OpTable) -> Sequence[Tensor]:
            where = (*cache, table, starts, seq_lens, tiles)
            return (ops.extend_attention(query, *where, *self._settings(), self._arch),)

        label = "whole prompts" if tuple(query_lens) == tuple(lengths) else "chunks over a cached prefix"
        return OpCase(("extend_attention",), label, run)

    def _norms(self) -> Iterator[OpCase[OpTable]]:
        """Of the residual stream in float32; in the model's type where layers norm what they computed."""
        x, dtype = self._random(9, self._shape.hidden_size), self._dtype
        residual = self._random(9, self._shape.hidden_size, dtype=torch.float32)
        weight = self._random(self._shape.hidden_size, dtype=torch.float32)
        yield OpCase(("rms_norm",), "nine tokens", lambda ops: (ops.rms_norm(residual, weight, 1e-5, dtype),))
        yield OpCase(
            ("add_rms_norm",),
            "nine tokens",
            lambda ops: ops.add_rms_norm(x, residual, weight, 1e-5, dtype),
        )
        if self._shape.norms_outputs:
            yield OpCase(("rms_norm",), "nine outputs", lambda ops: (ops.rms_norm(x, weight, 1e-5, dtype),))
        if self._shape.norms_heads_alone:
            heads = self._random(9 * self._shape.num_heads, self._shape.head_dim)
            of_head = self._random(self._shape.head_dim, dtype=torch.float32)
            yield OpCase(
                ("rms_norm",),
                "heads of nine tokens",
                lambda ops: (ops.rms_norm(heads, of_head, 1e-5, dtype),),
            )

    def _rope(self) -> OpCase[OpTable]:
        shape = self._shape
        x = self._random(9, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        heads = x[:, : shape.num_heads + shape.num_kv_heads]
        angles = torch.rand((9, shape.rope_dim // 2), generator=self._generator) * 6
        cos, sin = angles.cos().to(self._device), angles.sin().to(self._device)
        weights = [
            self._random(shape.head_dim, dtype=torch.float32) if shape.has_qk_norm else None for _ in range(2)
        ]
        label = "neighbouring pairs" if shape.interleaved else "two halves"
        return OpCase(
            ("norm_rope",),
            label + (" behind a norm" if shape.has_qk_norm else ""),
            lambda ops: (ops.norm_rope(heads, shape.num_heads, *weights, 1e-5, cos, sin, shape.interleaved),),
        )

    def _swiglu(self) -> OpCase[OpTable]:
        x = self._random(9, 2 * self._shape.intermediate_size)
        return OpCase(("swiglu",), "nine tokens", lambda ops: (ops.swiglu(x),))

    def matmuls(self, product: Product) -> Iterator[OpCase[OpTable]]:
        """Of few rows and of many."""
        inner, columns = product.num_inner, product.num_columns
        groups = (inner // GROUP_SIZE, columns)
        scales = (torch.rand(groups, generator=self._generator) * 0.02).half().to(self._device)
        offsets = None
        if product.kind == WeightKind.W4A16:
            offsets = self._random(*groups, dtype=torch.float16)
            low, high, rows, dtype = -(1 << 31), 1 << 31, inner // 8, torch.int32
        else:
            low, high, rows, dtype = -127, 128, inner, torch.int8
        weight = self._whole(low, high, (rows, columns), dtype)

        def run(x: Tensor, ops: OpTable) -> Sequence[Tensor]:
            return (ops.group_matmul(x, weight, scales, offsets, self._arch),)

        for num_rows in (3, 20):
            label = f"{product.kind}, {num_rows} tokens by {inner} x {columns}"
            yield OpCase(("group_matmul",), label, partial(run, self._random(num_rows, inner)))


def _stored(cache: LayerKV) -> Sequence[Tensor]:
    """Keys and values of the blocks that were written, in float32; zeros where all others are untouched."""
    found, others = [], []
    sides = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    for stored, scales in sides:
        before = stored.as_strided(stored.shape, stored.stride(), 0)[:1]
        outside = torch.cat([each.float() for each in (before, stored[:1], stored[-1:])])
        is_poison = (outside == POISON) if stored.dtype == torch.int8 else outside.isnan()
        others.append((~is_poison).any().float().view(1))
        written = stored[1:-1].float()
        found.append(written if scales is None else written * scales[1:-1, ..., None])
    return [*found, torch.stack(others)]
