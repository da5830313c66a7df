"""Attention kernels against float64, over caches whose unused slots hold NaN.

Every case has a sequence of three tiles of keys or more and splits of which at least two are not empty: with
one tile a kernel that forgets to rescale its sums passes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trivet_cuda_interpreted.paged_case import ARCH, TOLERANCES, PagedCase

from trivet_cuda import twins
from trivet_cuda.kernels.decode import decode_attention
from trivet_cuda.kernels.extend import extend_attention

F32, F16, BF16, INT8, FP8 = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.float8_e4m3fn,
)
SHORT: dict[str, Any] = {"queries": (3, 1), "prefixes": (20, 300)}
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
    assert float((found.double() - wanted).abs().max()) < TOLERANCES[found.dtype]


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
    """The table's filler, the scratch block and what is behind a sequence's end keep their poison."""
    paged, _, _ = case
    flat = paged.caches[0].float().flatten(0, 1)
    untouched = torch.ones(len(flat), dtype=torch.bool)
    untouched[paged.slots[paged.slots >= 0].long()] = False
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


def test_a_value_beyond_float8_becomes_its_largest() -> None:
    paged = PagedCase(torch.bfloat16, FP8, queries=(1,), prefixes=(3,))
    new = [torch.full_like(each, 1000.0) for each in paged.new]
    from trivet_cuda.kernels.kv_write import write_kv

    write_kv(*new, *paged.caches, None, None, paged.slots)
    assert float(paged.held(0)[0].max()) == 448.0


def test_a_step_without_tokens_launches_nothing() -> None:
    paged = PagedCase(torch.float32, queries=(1,), prefixes=(3,))
    none = paged.random(0, 8, 64)
    found = decode_attention(
        none, *paged.caches, None, None, paged.table[:0], paged.slots[:0], 1.0, 0, 0.0, 2, 90
    )
    assert found.shape == (0, 8, 64)
