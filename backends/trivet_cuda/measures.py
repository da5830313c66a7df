"""How fast attention is on a device, beside what the device does at best: for `trivet selftest cuda`.

Ceilings are measured, too: a copy of memory for bytes a second, torch's product of matrices for operations.
All over random values: of zeros a card's memory moves more, compressed, and its tensor cores take less power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trivet.self_test import OpOutcome
from trivet_cuda.device import Device
from trivet_cuda.op_table import OpTable
from trivet_cuda.self_test import guarded
from trivet_cuda.tiles import decode_splits, extend_tiles

DTYPE = torch.bfloat16
CEILINGS = ("copy", "product")
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Large enough to fill a card for milliseconds; it takes some 3 GiB."""

    decode_seqs: int = 32
    decode_tokens: int = 8192  # of each sequence
    extend_tokens: int = 8192  # one prompt
    copied_bytes: int = 1 << 30
    matrix: int = 8192
    num_runs: int = 10


def run_measures(table: OpTable, device: Device, sizes: Sizes = Sizes()) -> Iterator[OpOutcome]:
    """Each in GB/s or TFLOP/s. No speed fails; what cannot run has failed, and the others go on.

    Raises: DeviceLost.
    """
    decoding = f"{sizes.decode_seqs} x {sizes.decode_tokens} tokens"
    measures: tuple[tuple[str, str, str, float, Callable[[], float]], ...] = (
        ("copy", f"{sizes.copied_bytes} bytes", "gb_per_s", 1e9,
         lambda: _copied_bytes_per_s(device, sizes)),
        ("decode_attention", decoding, "gb_per_s", 1e9, lambda: _decoded_bytes_per_s(table, device, sizes)),
        ("product", f"{sizes.matrix} squared", "tflop_per_s", 1e12, lambda: _multiplied_per_s(device, sizes)),
        ("extend_attention", f"{sizes.extend_tokens} tokens", "tflop_per_s", 1e12,
         lambda: _extended_per_s(table, device, sizes)),
    )  # fmt: skip
    ceilings: dict[str, float] = {}  # by unit: what was measured first
    for op, what, unit, size, measure in measures:
        measured = _measured(op, f"speed, {what}", unit, size, measure, ceilings)
        yield from guarded(measured, (op,), f"speed, {what}", DTYPE)


def _measured(
    op: str, case: str, unit: str, size: float, measure: Callable[[], float], ceilings: dict[str, float]
) -> Iterator[OpOutcome]:
    """A kernel's with its share of the ceiling, where that could be measured."""
    with torch.inference_mode():
        speed = measure() / size
    measured = {unit: speed}
    if op not in CEILINGS and unit in ceilings:
        measured["share_of_ceiling"] = speed / ceilings[unit]
    elif op in CEILINGS:
        ceilings[unit] = speed
    yield OpOutcome((op,), case, "bfloat16", 0.0, 0.0, measured=measured)


def _seconds(device: Device, num_runs: int, run: Callable[[], object]) -> float:
    """Of one run, after one that compiles."""
    run()
    began = device.mark()
    for _ in range(num_runs):
        run()
    ended = device.mark()
    ended.wait()
    return max(ended.seconds_since(began), 1e-9) / num_runs


def _copied_bytes_per_s(device: Device, sizes: Sizes) -> float:
    """Read and written."""
    source = torch.randint(0, 256, (sizes.copied_bytes // 2,), dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(device, sizes.num_runs, lambda: target.copy_(source))


def _multiplied_per_s(device: Device, sizes: Sizes) -> float:
    matrix = torch.randn((sizes.matrix, sizes.matrix), dtype=DTYPE, device=device.torch_device)
    return 2.0 * sizes.matrix**3 / _seconds(device, sizes.num_runs, lambda: matrix @ matrix)


def _cache(num_tokens: int, num_seqs: int, device: Device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values, and a table of blocks one after the other."""
    blocks = -(-num_tokens // BLOCK_SIZE)
    shape = (1 + num_seqs * blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(shape, dtype=DTYPE, device=device.torch_device) for _ in range(2))
    table = 1 + torch.arange(num_seqs * blocks, dtype=torch.int32, device=device.torch_device)
    return keys, values, table.view(num_seqs, blocks)


def _decoded_bytes_per_s(table: OpTable, device: Device, sizes: Sizes) -> float:
    """Of keys and values."""
    count, length = sizes.decode_seqs, sizes.decode_tokens
    keys, values, blocks = _cache(length, count, device)
    query = torch.randn((count, NUM_HEADS, HEAD_DIM), dtype=DTYPE, device=device.torch_device)
    lengths = torch.full((count,), length, dtype=torch.int32, device=device.torch_device)
    splits = decode_splits(count, NUM_KV_HEADS, length, device.num_sms)
    where = (query, keys, values, None, None, blocks, lengths, HEAD_DIM**-0.5, 0, 0.0, splits, device.arch)
    num_bytes = 2.0 * count * length * NUM_KV_HEADS * HEAD_DIM * DTYPE.itemsize
    return num_bytes / _seconds(device, sizes.num_runs, lambda: table.decode_attention(*where))


def _extended_per_s(table: OpTable, device: Device, sizes: Sizes) -> float:
    """Of the visible half of the scores, and of the weights."""
    length = sizes.extend_tokens
    keys, values, blocks = _cache(length, 1, device)
    query = torch.randn((length, NUM_HEADS, HEAD_DIM), dtype=DTYPE, device=device.torch_device)
    step = extend_tiles(device.arch, HEAD_DIM, NUM_HEADS // NUM_KV_HEADS, DTYPE, DTYPE).tile_tokens
    rows = [(0, first) for first in range(0, length, step)]
    starts, lengths, tiles = (
        torch.tensor(each, dtype=torch.int32, device=device.torch_device)
        for each in ([0, length], [length], rows)
    )
    where = (
        query,
        keys,
        values,
        None,
        None,
        blocks,
        starts,
        lengths,
        tiles,
        HEAD_DIM**-0.5,
        0,
        0.0,
        device.arch,
    )
    operations = 4.0 * NUM_HEADS * HEAD_DIM * length * length / 2
    return operations / _seconds(device, sizes.num_runs, lambda: table.extend_attention(*where))
