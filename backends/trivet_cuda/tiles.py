"""Tile sizes by architecture, head size and KV type: what a kernel is compiled with.

A table instead of measuring at run time: for shapes of well-known models its rows are compiled ahead of
time for every architecture, spills and shared memory are looked at (`tests/run cuda`). The numbers
are judged by registers, shared memory and the shapes of the tensor cores; no device was at hand to measure
them.

An architecture is a compute capability times ten: 80 A100, 86 and 87 smaller Ampere, 89 Ada, 90 Hopper, 100
data-centre Blackwell, 120 consumer Blackwell. A program has 99 KiB of shared memory on 86, 89 and 120, 163
KiB on 80 and 87, 227 KiB on 90 and 100, whose tensor cores read operands from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trivet_cuda.weight_kinds import GROUP_SIZE as GROUP_SIZE

ARCHITECTURES = (80, 86, 87, 89, 90, 100, 120)

MIN_PROGRAMS = 128  # of a product; what keeps a large card busy
MAX_MATMUL_SPLITS = 8
FEW_ROWS = 16  # the smallest tile of the tensor cores


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """Keys a step of the loop; the rows are the query heads of one KV head."""

    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class ExtendTiles:
    """`tile_tokens` new tokens with all query heads of a KV head fill `block_m` rows, or most of them."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tile_tokens: int


@dataclass(frozen=True, slots=True)
class MatmulTiles:
    """Of a product with a quantised matrix."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def supported_arch(arch: int) -> int:
    """The listed architecture whose table a device of `arch` uses: the newest that is not newer."""
    return max(each for each in ARCHITECTURES if each <= max(arch, ARCHITECTURES[0]))


def decode_tiles(arch: int, head_dim: int, query: torch.dtype, cache: torch.dtype) -> DecodeTiles:
    """Four warps: the rows of a tile are few, keys fill it."""
    if query == torch.float32:
        return _float32_decode_tiles(head_dim, is_stored_wide=cache == query)
    is_wide = head_dim > 128 or (arch >= 120 and cache == torch.float8_e4m3fn)  # 64 keys spill 8 bytes there
    return DecodeTiles(block_n=32 if is_wide else 64, num_warps=4, num_stages=2)


def extend_tiles(
    arch: int, head_dim: int, group: int, query: torch.dtype, cache: torch.dtype, *, has_window: bool = False
) -> ExtendTiles:
    """Eight warps share a tile: with four, accumulators spill below sm_90 and on sm_120.

    Args:
        has_window: of it `tile_tokens` does not depend.
    """
    arch = supported_arch(arch)
    block_m, block_n = 128, 64
    if query == torch.float32:
        return _float32_extend_tiles(head_dim, group, is_stored_wide=cache == query)
    if head_dim > 128:
        block_m, block_n = 64, 32
    elif cache != query and (arch < 90 or arch >= 120):
        block_n = 32  # the keys exist twice in registers, as stored and as floats
        if query == torch.float16 and cache == torch.int8:
            block_m = 64  # the values exist three times
        if arch >= 120 and cache == torch.float8_e4m3fn and head_dim <= 64:
            block_n = 64  # where 32 spill 8 bytes and 64 do not
    if has_window and arch == 100 and head_dim <= 64:
        block_n = 32  # 64 spill 8 bytes
    if has_window and arch == 80 and 64 < head_dim <= 128 and cache == torch.int8:
        block_n = 16  # 32 spill 16 bytes
    while block_m < group:  # at least one token's heads
        block_m *= 2
    return ExtendTiles(block_m, block_n, 8, 2, tile_tokens=max(1, block_m // group))


def _float32_decode_tiles(head_dim: int, *, is_stored_wide: bool) -> DecodeTiles:
    """The same on every architecture: products of float32 are not the tensor cores', registers decide.

    `is_stored_wide`: keys are float32 in the cache, too; else they exist twice in registers.
    """
    is_long = head_dim > 64
    num_stages = 1 if is_long and not is_stored_wide else 2
    return DecodeTiles(32, num_warps=8 if is_long else 4, num_stages=num_stages)


def _float32_extend_tiles(head_dim: int, group: int, *, is_stored_wide: bool) -> ExtendTiles:
    """As above; 99 KiB of shared memory hold one stage of keys and values of 256."""
    block_m = 32
    block_n, num_stages = (32, 2) if is_stored_wide and head_dim <= 128 else (16, 1)
    while block_m < group:
        block_m *= 2
    return ExtendTiles(block_m, block_n, 8, num_stages, tile_tokens=max(1, block_m // group))


def matmul_tiles(arch: int, num_rows: int) -> MatmulTiles:
    """Rows in steps of FEW_ROWS, which decoding seldom fills, or of 64."""
    if num_rows <= FEW_ROWS:
        return MatmulTiles(FEW_ROWS, 64, 64, 4, 2 if arch >= 120 else 3)  # a third stage spills 8 bytes there
    return MatmulTiles(64, 64, 64, 4, 3)


def matmul_splits(tiles: MatmulTiles, num_rows: int, num_inner: int, num_columns: int) -> int:
    """Programs that share K, each with 4 steps or more: a power of two.

    Only where rows are few, and then it does not depend on how many: another number is another kernel, and
    nothing is compiled in the middle of serving.
    """
    programs, splits = -(-num_columns // tiles.block_n), 1
    if num_rows > FEW_ROWS:
        return splits
    while splits < MAX_MATMUL_SPLITS and programs * splits < MIN_PROGRAMS:
        if num_inner < 4 * tiles.block_k * 2 * splits:
            break
        splits *= 2
    return splits


def decode_splits(num_seqs: int, num_kv_heads: int, max_model_len: int, num_multiprocessors: int) -> int:
    """Programs that share a sequence's keys, in steps of at most `num_seqs` sequences: a power of two.

    Two programs a multiprocessor, and at least 256 keys each of the longest sequence. It depends on the
    bucket and never on lengths: in a replayed graph only the device knows those.
    """
    splits = 1
    while 2 * splits * num_seqs * num_kv_heads <= 2 * num_multiprocessors and 2 * splits <= 32:
        if max_model_len < 2 * splits * 256:
            break
        splits *= 2
    return splits


def row_warps(block: int) -> int:
    """Of a program that holds a row of `block` values, or several short ones: 256 to 1024 values a warp."""
    return min(16, max(4, block // 512))


def tile_rows(block: int) -> int:
    """Rows of `block` values that share a program: some 1,024 values, a few for each thread."""
    return max(1, 1024 // block)
