"""The twins against mathematics written in another way; emulator and self-test trust them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet_ascend import npu_twins

BLOCK_SIZE = 128


class Paged:
    """Sequences of random keys and values in a paged cache whose other slots are NaN."""

    def __init__(
        self, query_lens: list[int], seq_lens: list[int], heads: int, kv_heads: int, size: int
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.keys = [torch.randn(n, kv_heads, size, generator=generator) for n in seq_lens]
        self.values = [torch.randn(n, kv_heads, size, generator=generator) for n in seq_lens]
        self.query = torch.randn(sum(query_lens), heads, size, generator=generator)
        self.query_lens, self.seq_lens = query_lens, seq_lens
        self.query_ends = np.cumsum(query_lens).tolist()
        widest = -(-max(seq_lens) // BLOCK_SIZE)
        num_blocks = 1 + len(seq_lens) * widest
        # Every sequence's blocks lie apart and backwards.
        self.table = torch.arange(num_blocks - 1, 0, -1, dtype=torch.int32).view(widest, -1).t().contiguous()
        self.caches = [torch.full((num_blocks, BLOCK_SIZE, kv_heads, size), torch.nan) for _ in range(2)]
        for row, parts in enumerate(zip(self.keys, self.values, strict=True)):
            for cache, part in zip(self.caches, parts, strict=True):
                for position, values in enumerate(part):
                    cache[self.table[row, position // BLOCK_SIZE], position % BLOCK_SIZE] = values

    def attended(self, **changes: object) -> Tensor:
        scale = 0.3
        where = (self.query, *self.caches, self.table, self.query_ends, self.seq_lens)
        return npu_twins.fused_attention(*where, None, scale, **changes)  # type: ignore[arg-type]

    def expected(self, bias_of: object = None) -> Tensor:
        """SDPA sequence by sequence with a full mask."""
        rows, start = [], 0
        for keys, values, count in zip(self.keys, self.values, self.query_lens, strict=True):
            query = self.query[start : start + count].transpose(0, 1)
            start += count
            group = query.shape[0] // keys.shape[1]
            k, v = (part.transpose(0, 1).repeat_interleave(group, 0) for part in (keys, values))
            distance = torch.arange(len(keys) - count, len(keys))[:, None] - torch.arange(len(keys))
            mask = torch.zeros(distance.shape).masked_fill(distance < 0, -torch.inf)
            if bias_of is not None:
                mask = mask + bias_of(distance)  # type: ignore[operator]
            rows.append(F.scaled_dot_product_attention(query, k, v, mask, scale=0.3).transpose(0, 1))
        return torch.cat(rows)


@pytest.fixture
def paged() -> Paged:
    """Decodes first, then chunks: one over a cached prefix, one from its start, one past a block."""
    return Paged([1, 1, 3, 9, 130], [1, 129, 40, 9, 260], heads=4, kv_heads=2, size=16)


def test_attention_is_that_of_each_sequence_alone(paged: Paged) -> None:
    torch.testing.assert_close(paged.attended(), paged.expected(), atol=2e-6, rtol=1e-5)


def test_queries_in_pieces_give_the_same(paged: Paged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_twins, "SCORES_BYTES", 4 * 4 * 260 * 7)
    torch.testing.assert_close(paged.attended(), paged.expected(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 5, 128, 200])
def test_a_window_hides_what_lies_behind_it(paged: Paged, window: int) -> None:
    wanted = paged.expected(lambda distance: torch.where(distance >= window, -torch.inf, 0.0))
    torch.testing.assert_close(paged.attended(window=window), wanted, atol=2e-6, rtol=1e-5)


def test_slopes_are_taken_times_the_distance(paged: Paged) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    wanted = paged.expected(lambda distance: -slopes[:, None, None] * distance)
    torch.testing.assert_close(paged.attended(slopes=slopes), wanted, atol=2e-6, rtol=1e-5)


def test_a_soft_cap_bends_the_scores(paged: Paged) -> None:
    """Of a lone token over itself nothing changes; a huge cap changes nothing at all."""
    torch.testing.assert_close(paged.attended(soft_cap=1e4), paged.expected(), atol=1e-4, rtol=1e-4)
    query, key = paged.query[1].view(2, 2, 16), paged.keys[1]
    scores = torch.einsum("hgd,khd->hgk", query, key) * 0.3
    weights = (2 * torch.tanh(scores / 2)).softmax(-1)
    wanted = torch.einsum("hgk,khd->hgd", weights, paged.values[1]).flatten(0, 1)
    torch.testing.assert_close(paged.attended(soft_cap=2.0)[1], wanted, atol=2e-6, rtol=1e-5)


def test_written_slots_are_those_of_the_mapping() -> None:
    caches = [torch.zeros(3, 4, 2, 8) for _ in range(2)]
    key, value = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    npu_twins.write_kv(key, value, *caches, torch.tensor([11, 0, 5], dtype=torch.int32))
    for source, cache in zip((key, value), caches, strict=True):
        assert torch.equal(cache[2, 3], source[0])
        assert torch.equal(cache[0, 0], source[1])
        assert torch.equal(cache[1, 1], source[2])
        assert int((cache != 0).any(-1).any(-1).sum()) == 3


def test_norms_are_torchs() -> None:
    x, residual, weight = torch.randn(5, 32), torch.randn(5, 32), torch.randn(32)
    wanted = F.rms_norm(x + residual, (32,), weight, 1e-5)
    normed, total = npu_twins.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(normed, wanted)
    assert torch.equal(total, x + residual)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_is_multiplication_of_complex_numbers(interleaved: bool) -> None:
    x, angle = torch.randn(6, 3, 8), torch.rand(6, 4) * 6
    pairs = x.view(6, 3, 4, 2) if interleaved else x.view(6, 3, 2, 4).transpose(-1, -2)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(()), angle)[:, None]
    wanted = torch.view_as_real(turned)
    wanted = wanted if interleaved else wanted.transpose(-1, -2)
    both = angle.repeat_interleave(2, -1) if interleaved else torch.cat((angle, angle), -1)
    torch.testing.assert_close(
        npu_twins.rotate(x, both.cos(), both.sin(), interleaved),
        wanted.reshape(x.shape),
        atol=1e-6,
        rtol=1e-5,
    )


def test_swiglu_activates_the_first_half() -> None:
    x = torch.randn(4, 10)
    torch.testing.assert_close(npu_twins.swiglu(x), F.silu(x[:, :5]) * x[:, 5:])


def test_rows_in_int8_are_within_half_a_step() -> None:
    x = torch.randn(7, 64)
    x[3] = 0
    values, scales = npu_twins.quantise_rows(x)
    assert values.dtype == torch.int8
    assert bool(((values * scales[:, None] - x).abs() <= scales[:, None] / 2 + 1e-7).all())
    assert int(values.abs().amax()) == 127


def test_products_of_quantised_operands_are_those_of_their_values() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-127, 128, (5, 64), generator=generator, dtype=torch.int8)
    weight = torch.randint(-127, 128, (64, 24), generator=generator, dtype=torch.int8)
    x_scales, scales, bias = torch.rand(5), torch.rand(24), torch.randn(24)
    wanted = (x * x_scales[:, None]).double() @ (weight * scales).double() + bias
    found = npu_twins.matmul_w8a8(x, x_scales, weight, scales, bias, torch.float32)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-3)


def test_four_bits_are_packed_from_the_lowest_bits_up() -> None:
    values = torch.tensor([[1, -1, 7, -8, 0, 3, -2, -3]], dtype=torch.int32)
    word = sum((int(value) & 15) << (4 * place) for place, value in enumerate(values[0]))
    assert int(npu_twins.pack_int4(values)) & 0xFFFFFFFF == word
    assert torch.equal(npu_twins.unpack_int4(npu_twins.pack_int4(values)), values)


def test_groups_have_scales_and_offsets_of_their_own() -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(-8, 8, (64, 16), generator=generator, dtype=torch.int32)
    scales, offsets = torch.rand(2, 16), torch.randn(2, 16)
    x = torch.randn(3, 64, generator=generator)
    wide = torch.cat([(values[i * 32 : i * 32 + 32] + offsets[i]) * scales[i] for i in range(2)])
    found = npu_twins.matmul_weight_only(x, npu_twins.pack_int4(values), scales, offsets, 32)
    torch.testing.assert_close(found, x @ wide, rtol=1e-5, atol=1e-4)
