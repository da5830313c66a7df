"""Whose rows are whose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trivet.errors import Unsupported
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.model_matrices import check_cuts, packed_matrices
from trivet.runners.slices import Rank, check_divisible, local_spec
from trivet.weights.index import TensorInfo, WeightIndex

LAYER = Layer(Attention(8, 4, 64, 0.125, Rope(64)), MLP(96))
SPEC = ModelSpec("Test", 100, 100, 512, 4096, (LAYER,), (0, 0), Norm())


@pytest.mark.parametrize(("size", "count"), [(8, 1), (8, 2), (10, 4), (3, 4)])
def test_the_parts_of_all_ranks_are_the_whole_in_order(size: int, count: int) -> None:
    parts = [Rank(index, count).part(size) for index in range(count)]
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    assert max(part.size for part in parts) == Rank(0, count).height(size)


def test_a_rank_computes_its_heads_and_its_part_of_the_feed_forward_block() -> None:
    (layer,) = local_spec(SPEC, 4).kinds
    assert (layer.attention.num_heads, layer.attention.num_kv_heads) == (2, 1)
    assert layer.mlp == MLP(24)
    assert local_spec(SPEC, 1) == SPEC


@pytest.mark.parametrize(
    ("layer", "num_ranks", "named"),
    [
        (LAYER, 8, "does not divide the model's 4 KV heads"),
        (LAYER, 3, "8 query heads"),
        (replace(LAYER, mlp=MLP(98)), 4, "98 columns of the feed-forward block"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(layer: Layer, num_ranks: int, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        check_divisible(replace(SPEC, kinds=(layer,)), num_ranks)
    check_divisible(SPEC, 4)


def stored_as(kind: str) -> WeightIndex:
    names = [part for matrix in packed_matrices(SPEC) for part in matrix.parts]
    return WeightIndex(tuple(TensorInfo(f"{name}.weight", (1, 1), kind, "m.gguf", 0, 1) for name in names))


def test_columns_that_are_no_whole_blocks_of_a_file_are_refused_by_name() -> None:
    """96 columns of the last product: three blocks of q8_0, and no whole one of q4_k."""
    check_cuts(SPEC, stored_as("q8_0"), 1)
    check_cuts(SPEC, stored_as("bf16"), 4)
    with pytest.raises(
        Unsupported, match=r"each rank 48 of the 96 columns of 'layers\.0\.down\.weight'.* q8_0"
    ):
        check_cuts(SPEC, stored_as("q8_0"), 2)
    with pytest.raises(
        Unsupported, match=r"each rank 128 of the 512 columns of 'layers\.0\.o\.weight'.* 256"
    ):
        check_cuts(SPEC, stored_as("q4_k"), 4)
