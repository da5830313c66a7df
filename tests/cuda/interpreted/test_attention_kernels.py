"""Attention kernels against float64, over caches whose unused slots hold NaN.

Every case but that of a window shorter than a tile has three tiles of keys or more, in chunks and in
decodes, and splits of which at least two are not empty: with one tile a kernel that forgets to rescale its
sums passes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from trivet_cuda_interpreted.paged_case import ARCH, PagedCase

from trivet.runners.op_check import largest_error
from trivet_cuda import twins
from trivet_cuda.kernels.decode import decode_attention
from trivet_cuda.kernels.extend import extend_attention
from trivet_cuda.kernels.kv_write import write_kv
from trivet_cuda.op_cases import TOLERANCES

F32, F16, BF16, INT8, FP8 = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.float8_e4m3fn,
)
SHORT: dict[str, Any] = {"queries": (3, 1), "prefixes": (140, 300)}
CASES: dict[str, tuple[dict[str, Any], int, float]] = {
    "float32": ({"dtype": F32}, 0, 0.0),
    "float16": ({"dtype": F16}, 0, 0.0),
    "bfloat16": ({"dtype": BF16}, 0, 0.0),
    "int8 cache": ({"dtype": BF16, "kv_dtype": INT8}, 0, 0.0),
    "float8 cache": ({"dtype": F16, "kv_dtype": FP8, **SHORT}, 0, 0.0),
    "float8 cache, bfloat16": ({"dtype": BF16, "kv_dtype": FP8, **SHORT}, 0, 0.0),
    "float32 over int8": ({"dtype": F32, "kv_dtype": INT8, **SHORT}, 0, 0.0),
    "head size 80, blocks of 32": ({"dtype": BF16, "head_dim": 80, "block_size": 32, **SHORT}, 0, 0.0),
    "head size 256": ({"dtype": BF16, "head_dim": 256, "num_heads": 2, "num_kv_heads": 1, **SHORT}, 0, 0.0),
    "head size 128, no group": (
        {"dtype": BF16, "head_dim": 128, "num_heads": 2, "num_kv_heads": 2, **SHORT},
        0,
        0.0,
    ),
    "group of 3": ({"dtype": F32, "num_heads": 9, "num_kv_heads": 3, **SHORT}, 0, 0.0),
    "group of 7": ({"dtype": F32, "num_heads": 14, "num_kv_heads": 2, **SHORT}, 0, 0.0),
    "group of 20, blocks of 1": (
        {"dtype": F32, "num_heads": 20, "num_kv_heads": 1, "block_size": 1, **SHORT},
        0,
        0.0,
    ),
    "window": ({"dtype": F32, "queries": (90, 1), "prefixes": (200, 300)}, 150, 0.0),
    "long window": ({"dtype": F32, "queries": (40, 1), "prefixes": (560, 700)}, 600, 0.0),
    "window shorter than a tile": ({"dtype": F32, **SHORT}, 24, 0.0),
    "soft cap": ({"dtype": F32, **SHORT}, 0, 1.5),
    "window and soft cap over int8": ({"dtype": F16, "kv_dtype": INT8, **SHORT}, 170, 2.0),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[PagedCase, int, float]:
    arguments, window, soft_cap = CASES[request.param]
    return PagedCase(**arguments), window, soft_cap


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.isfinite().all()
    assert largest_error(found, wanted) < TOLERANCES[found.dtype]  # over the largest of a row


def test_new_tokens_over_a_cached_prefix(case: tuple[PagedCase, int, float]) -> None:
    paged, window, soft_cap = case
    starts = torch.tensor([0, *paged.queries]).cumsum(0).int()
    query = paged.random(sum(paged.queries), paged.num_heads, paged.head_dim).to(paged.dtype)
    where = (*paged.caches, *paged.scales, paged.table, starts, torch.tensor(paged.lengths).int())
    settings = (paged.head_dim**-0.5, window, soft_cap)
    wanted = torch.cat(
        [
            paged.reference(row, part, window, soft_cap)
            for row, part in enumerate(query.split(list(paged.queries)))
        ]
    )
    check(extend_attention(query, *where, paged.tiles(), *settings, ARCH), wanted)
    check(twins.extend_attention(query, *where, paged.tiles(), *settings, ARCH), wanted)


@pytest.mark.parametrize("num_splits", [1, 4])
def test_one_query_a_sequence(case: tuple[PagedCase, int, float], num_splits: int) -> None:
    paged, window, soft_cap = case
    # The last row is padding of a graph: no length, block 0.
    lengths = torch.tensor([*paged.lengths, 0]).int()
    table = torch.cat((paged.table, torch.zeros_like(paged.table[:1])))
    query = paged.random(len(lengths), paged.num_heads, paged.head_dim).to(paged.dtype)
    arguments = (query, *paged.caches, *paged.scales, table, lengths, paged.head_dim**-0.5, window, soft_cap)
    wanted = torch.cat(
        [paged.reference(row, query[row : row + 1], window, soft_cap) for row in range(len(paged.lengths))]
        + [torch.zeros(1, paged.num_heads, paged.head_dim)]
    )
    check(decode_attention(*arguments, num_splits, ARCH), wanted)
    if num_splits == 1:
        check(twins.decode_attention(*arguments, num_splits, ARCH), wanted)


def test_what_is_written_is_what_was_given(case: tuple[PagedCase, int, float]) -> None:
    paged, _, _ = case
    assert paged.kv_dtype is not None
    allowed = {INT8: 0.5 / 127 + 1e-6, FP8: 1 / 16}.get(paged.kv_dtype, 0.0)
    assert paged.quantisation_error() <= allowed


def test_padding_and_other_slots_stay_untouched(case: tuple[PagedCase, int, float]) -> None:
    """Poison stays in the table's filler, the scratch block, behind a sequence's end and before a cache."""
    paged, _, _ = case
    for guarded in paged.guarded:
        flat = guarded.float().flatten(0, 1)
        untouched = torch.ones(len(flat), dtype=torch.bool)
        untouched[paged.slots[paged.slots >= 0].long() + paged.block_size] = False
        poison = flat[untouched]
        assert len(poison)
        assert bool((poison == 113).all() if paged.kv_dtype == INT8 else poison.isnan().all())


def test_the_twin_writes_what_the_kernel_writes(case: tuple[PagedCase, int, float]) -> None:
    paged, _, _ = case
    caches = [torch.zeros_like(cache) for cache in paged.caches]
    scales = [None if each is None else torch.zeros_like(each) for each in paged.scales]
    twins.write_kv(*paged.new, *caches, *scales, paged.slots)
    at = paged.slots[paged.slots >= 0].long()
    for mine, kernels in zip(caches, paged.caches, strict=True):
        assert torch.equal(mine.float().flatten(0, 1)[at], kernels.float().flatten(0, 1)[at])


@pytest.mark.parametrize("write", [write_kv, twins.write_kv], ids=["kernel", "twin"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_a_value_beyond_float8_becomes_its_largest(dtype: torch.dtype, write: Any) -> None:
    """464 is the last that would be rounded to it; infinity is beyond the range, too."""
    paged = PagedCase(dtype, FP8, queries=(1,), prefixes=(3,))
    given = torch.tensor([449.0, 1000.0, torch.inf, 465.0, -449.0, -1000.0, -torch.inf, 3.0])
    new = [given.repeat(each.shape[-1] // 8).expand(each.shape).to(dtype) for each in paged.new]
    write(*new, *paged.caches, None, None, paged.slots)
    wanted = torch.tensor([448.0] * 4 + [-448.0] * 3 + [3.0]).repeat(8)
    for held in paged.held(0):
        assert torch.equal(held.float(), wanted.expand(held.shape))


@pytest.mark.parametrize("write", [write_kv, twins.write_kv], ids=["kernel", "twin"])
@pytest.mark.parametrize("kv_dtype", [BF16, INT8, FP8], ids=["bfloat16", "int8", "float8"])
def test_what_is_not_a_number_spoils_its_own_sequence_alone(kv_dtype: torch.dtype, write: Any) -> None:
    """A number in its place would be a wrong answer; a sequence whose logits are no numbers is failed."""
    paged = PagedCase(BF16, kv_dtype, queries=(2, 3), prefixes=(200, 300))
    query = paged.random(5, 8, 64).to(BF16)
    starts, lengths = torch.tensor([0, 2, 5]).int(), torch.tensor(paged.lengths).int()
    where, settings = (*paged.caches, *paged.scales, paged.table), (0.125, 0, 0.0)
    for side in (0, 1):
        spoilt = [each.clone() for each in paged.new]
        spoilt[side][77, :, 5] = torch.nan
        write(*spoilt, *paged.caches, *paged.scales, paged.slots)
        extended = extend_attention(query, *where, starts, lengths, paged.tiles(), *settings, ARCH)
        found = [extended.split([2, 3])]
        found += [decode_attention(query[:2], *where, lengths, *settings, n, ARCH).split(1) for n in (1, 4)]
        for first, second in found:
            # A value of 16 or 8 bits spoils its own place; a key, or a scale of int8, the whole head.
            assert (first if side == 0 else first[..., 5]).isnan().all()
            assert second.isfinite().all()


def test_int8_of_infinity_is_not_a_number() -> None:
    paged = PagedCase(BF16, INT8, queries=(1,), prefixes=(3,))
    new = [each.clone() for each in paged.new]
    for each in new:
        each[2, 0, 7] = torch.inf
    write_kv(*new, *paged.caches, *paged.scales, paged.slots)
    for held in paged.held(0):
        assert held[2, 0].isnan().all()
        assert held[2, 1].isfinite().all()
        assert held[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("num_splits", [1, 2, 4, 8, 16, 32])
def test_any_number_of_splits_gives_the_same(num_splits: int) -> None:
    """Of nineteen tiles of keys: of up to 19 splits each has some, of 32 the last have none."""
    paged = PagedCase(BF16, queries=(1, 1), prefixes=(1203, 30), num_heads=2, num_kv_heads=1)
    query = paged.random(2, 2, 64).to(BF16)
    lengths = torch.tensor(paged.lengths).int()
    where = (query, *paged.caches, None, None, paged.table, lengths, 64**-0.5, 0, 0.0)
    wanted = torch.cat([paged.reference(row, query[row : row + 1], 0, 0.0) for row in (0, 1)])
    check(decode_attention(*where, num_splits, ARCH), wanted)


@pytest.mark.parametrize("size", [1e-3, 1e-5])
def test_small_values_of_int8_do_not_vanish_in_float16(size: float) -> None:
    """Their scales, times a weight of the softmax, are below what float16 can tell apart."""
    paged = PagedCase(F16, INT8, queries=(4, 1), prefixes=(200, 300))
    assert paged.scales[1] is not None
    paged.scales[1] *= size
    query = paged.random(5, 8, 64).to(F16)
    starts, lengths = torch.tensor([0, 4, 5]).int(), torch.tensor(paged.lengths).int()
    where = (*paged.caches, *paged.scales, paged.table, starts, lengths, paged.tiles())
    parts = query.split([4, 1])
    wanted = torch.cat([paged.reference(row, part, 0, 0.0) for row, part in enumerate(parts)])
    found = extend_attention(query, *where, 64**-0.5, 0, 0.0, ARCH)
    # A result of 1e-6 itself has few bits in float16: half of its last one is allowed beside the usual.
    allowed = TOLERANCES[F16] * size + 2**-25
    assert float((found.double() - wanted).abs().max()) < allowed


def test_a_cache_of_more_than_two_gibibytes_is_reached() -> None:
    """Offsets beyond int32, in elements. Of the memory only the pages of a few blocks are ever touched."""
    block_size, heads, head_dim, length = 16, 8, 256, 40
    num_blocks = (1 << 31) // (block_size * heads * head_dim) + 8
    table = num_blocks - 1 - torch.tensor([[3, 0, 5]]).int()
    slots = table[0, torch.arange(length) // block_size] * block_size + torch.arange(length) % block_size
    caches = [
        torch.empty((num_blocks, block_size, heads, head_dim), dtype=torch.uint8).view(FP8) for _ in range(2)
    ]
    small = [torch.zeros((8, block_size, heads, head_dim), dtype=torch.uint8).view(FP8) for _ in range(2)]
    generator = torch.Generator().manual_seed(5)
    new = [torch.randn((length, heads, head_dim), generator=generator) for _ in range(2)]
    query = torch.randn((length, heads, head_dim), generator=generator)
    starts, lengths = torch.tensor([0, length]).int(), torch.tensor([length]).int()
    tiles = torch.tensor([[0, first] for first in range(0, length, 32)]).int()
    found = []
    for each, blocks, at in (
        (caches, table, slots),
        (small, table - (num_blocks - 8), slots - (num_blocks - 8) * block_size),
    ):
        write_kv(*new, *each, None, None, at.int())
        where = (*each, None, None, blocks)
        found.append(extend_attention(query, *where, starts, lengths, tiles, 0.06, 0, 0.0, ARCH))
        found.append(decode_attention(query[-1:], *where, lengths, 0.06, 0, 0.0, 2, ARCH))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    check(found[0][-1:], found[1].double())


def test_twins_take_long_prompts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of all queries at once would be quadratic in the prompt's length."""
    paged = PagedCase(F32, queries=(90, 1), prefixes=(200, 3))
    query = paged.random(91, 8, 64)
    starts, lengths = torch.tensor([0, 90, 91]).int(), torch.tensor(paged.lengths).int()
    where = (
        query,
        *paged.caches,
        None,
        None,
        paged.table,
        starts,
        lengths,
        paged.tiles(),
        0.125,
        50,
        0.0,
        ARCH,
    )
    wanted = twins.extend_attention(*where)
    most = 8 * 290 * 10  # scores of ten queries
    monkeypatch.setattr(twins, "MAX_SCORES", most)
    with Largest() as largest:
        found = twins.extend_attention(*where)
    torch.testing.assert_close(found, wanted)
    assert largest.num_values <= max(most, *(cache.numel() for cache in paged.caches))


class Largest(TorchDispatchMode):
    """Remembers the most values of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.num_values = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.num_values = max(self.num_values, result.numel())
        return result


def test_a_step_without_tokens_launches_nothing() -> None:
    paged = PagedCase(torch.float32, queries=(1,), prefixes=(3,))
    none = paged.random(0, 8, 64)
    found = decode_attention(
        none, *paged.caches, None, None, paged.table[:0], paged.slots[:0], 1.0, 0, 0.0, 2, 90
    )
    assert found.shape == (0, 8, 64)
