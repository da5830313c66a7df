"""What the self-test runs: each operation over shapes that a model needs, and over known traps.

The traps: keys past 512, where a wrong mask shows (vllm-ascend #15503); uniform averages instead of
attention (#13699); values that are not numbers in slots behind a sequence's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from trivet.runners.op_check import OpCase
from trivet.runners.op_sizes import OpSizes
from trivet_ascend import npu_ops
from trivet_ascend.op_table import OpTable
from trivet_ascend.weight_kinds import GROUP_SIZE

BLOCK_SIZE = 128
# Largest error over the largest value: 16-bit results of sums in 32 bits, taken in another order. The
# emulator and torch's bfloat16 on the CPU are within a third of it.
TOLERANCES = {torch.bfloat16: 0.02, torch.float16: 0.005}


class CaseMaker:
    """Random arguments on one device; the same for every table."""

    def __init__(self, shape: OpSizes, dtype: torch.dtype, device: torch.device) -> None:
        self._shape, self._dtype, self._device = shape, dtype, device
        self._generator = torch.Generator().manual_seed(7)

    def cases(self, *, attention: bool = True) -> Iterator[OpCase[OpTable]]:
        """All but those of quantised weights; without attention where the model's is gathered anyway."""
        if attention:
            yield self._attention("one token each", (1, 1, 1), (1, 128, 700))
            yield self._attention("whole prompts", (5, 130), (5, 130))
            yield self._attention("chunks over a cached prefix", (1, 7, 140), (600, 135, 655))
        yield self._write_kv()
        yield from self._norms()
        yield self._rotate()
        yield self._swiglu()

    def quantised_cases(self, weights: str) -> Iterator[OpCase[OpTable]]:
        """Of the option `weights`."""
        if weights in ("w8a16", "w8a8"):  # a head is always w8a16
            yield self._weight_only("int8, a scale a column", 0)
        if weights == "w8a8":
            yield self._quantise()
            yield self._w8a8()
        if weights == "w4a16":
            yield self._weight_only("4 bits in groups", GROUP_SIZE)

    # ---- arguments -------------------------------------------------------------------------------

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self._generator)
        return values.to(dtype or self._dtype).to(self._device)

    def _integers(self, low: int, high: int, dtype: torch.dtype, *shape: int) -> Tensor:
        values = torch.randint(low, high, shape, generator=self._generator, dtype=dtype)
        return values.to(self._device)

    def _attention(self, label: str, query_lens: Sequence[int], seq_lens: Sequence[int]) -> OpCase[OpTable]:
        shape = self._shape
        counts = [-(-length // BLOCK_SIZE) for length in seq_lens]
        num_blocks = 1 + sum(counts)
        table = torch.zeros((len(seq_lens), max(counts)), dtype=torch.int32)
        order = torch.randperm(num_blocks - 1, generator=self._generator).int() + 1
        cache_shape = (num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        caches = [torch.full(cache_shape, torch.nan) for _ in range(2)]
        first = 0
        for row, (count, length) in enumerate(zip(counts, seq_lens, strict=True)):
            blocks = order[first : first + count]
            first += count
            table[row, :count] = blocks
            for cache in caches:
                flat = cache[blocks.long()].flatten(0, 1)
                flat[:length] = torch.randn((length, *cache_shape[2:]), generator=self._generator)
                cache[blocks.long()] = flat.view(count, *cache_shape[1:])
        query = self._random(sum(query_lens), shape.num_heads, shape.head_dim)
        ends = torch.tensor(query_lens).cumsum(0).tolist()
        keys, values = (cache.to(self._dtype).to(self._device) for cache in caches)
        size = npu_ops.CAUSAL_MASK_SIZE
        mask = torch.ones(size, size, dtype=torch.int8).triu(1).to(self._device)
        where = (query, keys, values, table.to(self._device), ends, list(seq_lens), mask)

        def run(ops: OpTable) -> Sequence[Tensor]:
            return (ops.fused_attention(*where, shape.head_dim**-0.5),)

        return OpCase(("fused_attention",), label, run)

    def _write_kv(self) -> OpCase[OpTable]:
        shape = self._shape
        key, value = (self._random(5, shape.num_kv_heads, shape.head_dim) for _ in range(2))
        slots = torch.tensor([130, 0, 255, 7, 128], dtype=torch.int32).to(self._device)
        empty = torch.zeros(2, BLOCK_SIZE, *key.shape[1:], dtype=self._dtype)

        def run(ops: OpTable) -> Sequence[Tensor]:
            caches = [empty.to(self._device, copy=True) for _ in range(2)]
            ops.write_kv(key, value, *caches, slots)
            return caches

        return OpCase(("write_kv",), "five slots of two blocks", run)

    def _norms(self) -> Iterator[OpCase[OpTable]]:
        x, residual = (self._random(9, self._shape.hidden_size) for _ in range(2))
        weight = self._random(self._shape.hidden_size)
        yield OpCase(("rms_norm",), "nine tokens", lambda ops: (ops.rms_norm(x, weight, 1e-5),))
        yield OpCase(
            ("add_rms_norm",), "nine tokens", lambda ops: ops.add_rms_norm(x, residual, weight, 1e-5)
        )

    def _rotate(self) -> OpCase[OpTable]:
        shape = self._shape
        x = self._random(9, shape.num_heads, shape.rope_dim)
        angles = torch.rand((9, shape.rope_dim // 2), generator=self._generator) * 6
        wide = angles.repeat_interleave(2, -1) if shape.interleaved else torch.cat((angles, angles), -1)
        cos, sin = (part.to(self._dtype).to(self._device) for part in (wide.cos(), wide.sin()))
        label = "neighbouring pairs" if shape.interleaved else "two halves"
        return OpCase(("rotate",), label, lambda ops: (ops.rotate(x, cos, sin, shape.interleaved),))

    def _swiglu(self) -> OpCase[OpTable]:
        x = self._random(9, 2 * self._shape.intermediate_size)
        return OpCase(("swiglu",), "nine tokens", lambda ops: (ops.swiglu(x),))

    def _quantise(self) -> OpCase[OpTable]:
        x = self._random(9, self._shape.hidden_size)

        def run(ops: OpTable) -> Sequence[Tensor]:
            values, scales = ops.quantise_rows(x)
            return (values.float() * scales[:, None],)

        return OpCase(("quantise_rows",), "nine tokens", run)

    def _w8a8(self) -> OpCase[OpTable]:
        rows, columns = self._shape.intermediate_size, self._shape.hidden_size
        x = self._integers(-127, 128, torch.int8, 9, columns)
        weight = self._integers(-127, 128, torch.int8, rows, columns)
        # Small enough for sums to stay within float16.
        x_scales, scales = (self._random(size, dtype=torch.float32).abs() / 127 for size in (9, rows))

        def run(ops: OpTable) -> Sequence[Tensor]:
            return (ops.matmul_w8a8(x, x_scales, weight.t(), scales, None, self._dtype),)

        return OpCase(("matmul_w8a8",), "nine tokens", run)

    def _weight_only(self, label: str, group_size: int) -> OpCase[OpTable]:
        rows, columns = self._shape.intermediate_size, self._shape.hidden_size
        x = self._random(9, columns)
        if not group_size:
            weight = self._integers(-127, 128, torch.int8, rows, columns)
            scales = self._random(rows).abs() + 0.01
            return OpCase(
                ("matmul_weight_only",),
                label,
                lambda ops: (ops.matmul_weight_only(x, weight.t(), scales, None, 0),),
            )
        values = self._integers(-8, 8, torch.int32, columns, rows)
        scales, offsets = (self._random(columns // group_size, rows) for _ in range(2))

        def run(ops: OpTable) -> Sequence[Tensor]:
            words = ops.pack_int4(values)
            return (ops.matmul_weight_only(x, words, scales, offsets, group_size),)

        return OpCase(("pack_int4", "matmul_weight_only"), label, run)
