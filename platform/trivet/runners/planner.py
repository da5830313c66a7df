"""How many KV blocks fit on a device beside everything else, and how long a sequence may be; no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Generic, TypeVar

from trivet.contract import DeviceInfo, KVCacheSpec, MemoryPart, MemoryPlan, Peaks, RunnerConfig
from trivet.errors import DoesNotFit
from trivet.runners.step_shape import StepShape

# Of what others have left of a device's memory: the rest is for what libraries take without saying. 0.96
# failed on NPUs where 0.8 ran (vllm-ascend #9372).
DEFAULT_FRACTION = 0.9
PEAK_ROOM = 1.05  # over a measured peak
GIB, MIB = 1 << 30, 1 << 20
# Of the host, by each rank: interpreter, torch, what the vendor's libraries keep, pinned buffers. Not
# measured: the least of what is told of others' (2 to 4 GiB). It stands in the ledger and refuses nothing.
HOST_BYTES_PER_RANK = 2 * GIB
Shape = TypeVar("Shape", bound=StepShape)


@dataclass(frozen=True, slots=True)
class Costs(Generic[Shape]):
    """What a model takes of one rank's device."""

    kv: KVCacheSpec
    fixed_parts: Callable[[Shape], tuple[MemoryPart, ...]]  # all but KV, the weights first
    devices: str  # in messages: "GPUs"
    smaller: str = "a smaller model"  # what else would fit
    most_blocks: int | None = None  # that an operation takes; more memory is left alone


def plan_memory(config: RunnerConfig, shape: Shape, device: DeviceInfo, costs: Costs[Shape]) -> MemoryPlan:
    """The plan of one rank. `max_model_len` is lowered to what fits unless it was asked for.

    Raises: DoesNotFit with what is needed, what there is, and the nearest setting that fits.
    """
    limit = usable_bytes(config, device)
    bounds = costs.fixed_parts
    costs = replace(costs, fixed_parts=lambda sized: measured_parts(bounds(sized), config.peaks, sized))
    num_blocks = _num_blocks(config, shape, limit, costs)
    room = (num_blocks - 1) * shape.block_size
    if config.max_model_len is None and room >= 1:
        shape = shape.with_max_model_len(min(shape.max_model_len, room))
    parts = costs.fixed_parts(shape)
    needed = _bytes_of(parts) + max(2, num_blocks) * costs.kv.block_bytes
    if room < shape.max_model_len or needed > limit:
        raise _does_not_fit(config, shape, num_blocks, needed, limit, device, costs)
    if config.num_blocks is None:
        num_blocks = min(num_blocks, shape.max_num_seqs * shape.blocks_per_sequence + 1)
    first, *others = parts
    return MemoryPlan(
        kv=costs.kv,
        num_blocks=(num_blocks,),
        num_host_blocks=0,
        parts=(first, MemoryPart("kv", num_blocks * costs.kv.block_bytes), *others),
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
        host_bytes=shape.num_ranks * HOST_BYTES_PER_RANK,
    )


def measured_parts(
    parts: tuple[MemoryPart, ...], peaks: tuple[Peaks, ...], shape: StepShape
) -> tuple[MemoryPart, ...]:
    """With what an earlier start has measured of steps of this size, in place of bounds.

    Of one whose sequences were as long, else of the next longer ones.
    """
    comparable = [
        each
        for each in peaks
        if each.max_num_batched_tokens == shape.max_num_batched_tokens
        and each.max_model_len >= shape.max_model_len
    ]
    nearest = min(comparable, key=attrgetter("max_model_len"), default=None)
    known = {} if nearest is None else {part.name: part.size_bytes for part in nearest.parts}
    return tuple(
        MemoryPart(part.name, _with_room(known[part.name])) if part.name in known else part for part in parts
    )


def _with_room(peak: int) -> int:
    """A step may meet another order of allocations than the warm-up's."""
    return -(-int(peak * PEAK_ROOM) // MIB) * MIB


def usable_bytes(config: RunnerConfig, device: DeviceInfo) -> int:
    """What is free, within this instance's share; where nobody gave one, not all of it."""
    if config.memory_fraction is None:
        return int(DEFAULT_FRACTION * min(device.free_bytes, device.total_bytes))
    return min(device.free_bytes, int(config.memory_fraction * device.total_bytes))


def _num_blocks(config: RunnerConfig, shape: Shape, limit: int, costs: Costs[Shape]) -> int:
    """As asked for, or what fits at the longest `max_model_len`, which may be negative.

    Raises: DoesNotFit.
    """
    most = costs.most_blocks
    if config.num_blocks is None:
        fitting = (limit - _bytes_of(costs.fixed_parts(shape))) // costs.kv.block_bytes
        return fitting if most is None else min(fitting, most)
    if most is not None and config.num_blocks > most:
        raise DoesNotFit(
            f"num_gpu_blocks_override {config.num_blocks} makes a layer's keys more than 2^31 - 1 elements, "
            f"which the attention operation does not take; use at most {most}"
        )
    if config.num_blocks < 2:
        raise DoesNotFit(
            f"num_gpu_blocks_override {config.num_blocks} leaves no block for a sequence beside the scratch "
            "block; use at least 2"
        )
    return config.num_blocks


def _bytes_of(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.size_bytes for part in parts)


def _does_not_fit(
    config: RunnerConfig,
    shape: Shape,
    num_blocks: int,
    needed: int,
    limit: int,
    device: DeviceInfo,
    costs: Costs[Shape],
) -> DoesNotFit:
    room = max(0, num_blocks - 1) * shape.block_size
    if config.num_blocks is not None and room < shape.max_model_len:
        return DoesNotFit(
            f"max_model_len {shape.max_model_len} needs {shape.blocks_per_sequence + 1} KV blocks of "
            f"{shape.block_size} tokens and num_gpu_blocks_override is {num_blocks}; raise it, or lower "
            f"max_model_len to {room}"
        )
    remedies = []
    if room >= 1:
        remedies.append(f"lower max_model_len to {room}")
    if limit < needed <= device.free_bytes:
        remedies.append("raise gpu_memory_utilization")
    if not remedies:
        remedies.append(f"use more devices (tensor_parallel_size) or {costs.smaller}")
    return DoesNotFit(
        f"max_model_len {shape.max_model_len} with {max(2, num_blocks)} KV blocks needs "
        f"{needed / GIB:.2f} GiB on each of {shape.num_ranks} {costs.devices} and {limit / GIB:.2f} GiB may "
        f"be used; {' or '.join(remedies)}"
    )
