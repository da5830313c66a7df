"""Tables and heuristics are functions of shapes alone."""

from __future__ import annotations

import pytest
import torch

from trivet_cuda.tiles import ARCHITECTURES, decode_splits, extend_tiles, supported_arch


def test_splits_depend_on_the_bucket_and_never_exceed_what_the_context_needs() -> None:
    assert decode_splits(1, 8, 131072, 132) == 32
    assert decode_splits(256, 8, 131072, 132) == 1
    assert decode_splits(1, 8, 600, 132) == 2
    assert decode_splits(1, 8, 100, 132) == 1


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 20, 71, 200])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tile_holds_whole_tokens(arch: int, group: int) -> None:
    tiles = extend_tiles(arch, 128, group, torch.bfloat16, torch.int8)
    assert tiles.tile_tokens >= 1
    assert tiles.tile_tokens * group <= tiles.block_m
    assert tiles.block_m & (tiles.block_m - 1) == 0


def test_a_card_between_two_architectures_takes_the_older_table() -> None:
    assert [supported_arch(arch) for arch in (75, 80, 88, 103, 121)] == [80, 80, 87, 100, 120]
