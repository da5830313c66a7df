"""How many KV blocks fit beside everything else, and how long a sequence may be."""

from __future__ import annotations

from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, RunnerConfig
from trivet.errors import DoesNotFit
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_ascend import memory_plan
from trivet_ascend.memory_plan import Shape

DEFAULT_FRACTION = 0.9  # of a device's memory; 0.96 failed where 0.8 ran (vllm-ascend #9372)
GIB = 1 << 30


def plan_memory(
    spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, shape: Shape, device: DeviceInfo
) -> MemoryPlan:
    """The plan of one rank. `max_model_len` is lowered to what fits unless it was asked for.

    Raises: DoesNotFit with what is needed, what there is, and the nearest setting that fits.
    """
    block_bytes = memory_plan.kv_cache_spec(spec, shape).block_bytes
    fraction = DEFAULT_FRACTION if config.memory_fraction is None else config.memory_fraction
    limit = min(device.free_bytes, int(fraction * device.total_bytes))
    most = memory_plan.most_blocks(spec, shape)
    if config.num_blocks is None:
        num_blocks = min(_blocks_that_fit(spec, weights, shape, limit), most)
    else:
        num_blocks = config.num_blocks
        if num_blocks > most:
            raise DoesNotFit(
                f"num_gpu_blocks_override {num_blocks} makes a layer's keys more than 2^31 - 1 elements, "
                f"which the attention operation does not take; use at most {most}"
            )
    room = (num_blocks - 1) * shape.block_size
    if config.num_blocks is not None and room < 1:
        raise DoesNotFit(
            f"num_gpu_blocks_override {num_blocks} leaves no block for a sequence beside the scratch block; "
            "use at least 2"
        )
    if config.max_model_len is None and room >= 1:
        shape = shape.with_max_model_len(min(shape.max_model_len, room))
    parts = memory_plan.fixed_parts(spec, weights, shape)
    needed = sum(part.size_bytes for part in parts) + max(2, num_blocks) * block_bytes
    if room < shape.max_model_len or needed > limit:
        raise _does_not_fit(config, shape, num_blocks, needed, limit, device)
    wanted = shape.max_num_seqs * shape.blocks_per_sequence + 1
    if config.num_blocks is None:
        num_blocks = min(num_blocks, wanted)
    kv = memory_plan.kv_cache_spec(spec, shape)
    first, *others = parts
    return MemoryPlan(
        kv=kv,
        num_blocks=(num_blocks,),
        num_host_blocks=0,
        parts=(first, MemoryPart("kv", num_blocks * kv.block_bytes), *others),
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
    )


def _blocks_that_fit(spec: ModelSpec, weights: WeightIndex, shape: Shape, limit: int) -> int:
    """Beside everything else at the longest `max_model_len`; may be negative."""
    fixed = sum(part.size_bytes for part in memory_plan.fixed_parts(spec, weights, shape))
    return (limit - fixed) // memory_plan.kv_cache_spec(spec, shape).block_bytes


def _does_not_fit(
    config: RunnerConfig, shape: Shape, num_blocks: int, needed: int, limit: int, device: DeviceInfo
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
        remedies.append("use more devices (tensor_parallel_size), weights=w8a16 or a smaller model")
    return DoesNotFit(
        f"max_model_len {shape.max_model_len} with {max(2, num_blocks)} KV blocks needs "
        f"{needed / GIB:.2f} GiB on each of {shape.num_ranks} NPUs and {limit / GIB:.2f} GiB may be used; "
        f"{' or '.join(remedies)}"
    )
