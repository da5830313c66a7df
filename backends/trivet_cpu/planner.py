"""How many KV blocks fit beside everything else, and how long a sequence may be; refusals with a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, RunnerConfig
from trivet.errors import DoesNotFit
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_cpu import memory_plan
from trivet_cpu.memory_plan import Shape

# The process without what is planned for the model, measured with tiny models (Python 3.11, torch 2.13): what
# it would have to swap. Pages of files do not count (23 MiB of them, with torch 99): the kernel shares them
# between engines and drops them when it needs room.
NATIVE_PROCESS_BYTES = 26 << 20
TORCH_PROCESS_BYTES = 163 << 20  # and code that oneDNN makes at run time
TRANSFORMERS_PROCESS_BYTES = 275 << 20  # where its own code computes the model
# Of a tokenizer with 50,000 to 260,000 tokens: 334 to 348 measured.
TOKENIZER_TOKEN_BYTES = 340
# Left free beside: allocators keep some of what was given back.
MARGIN_BYTES, NATIVE_MARGIN_BYTES = 96 << 20, 48 << 20
# Without a stated share the KV cache takes at most this part of what is free, for other instances, and at
# most this many bytes: it holds 46,000 tokens of a 135M model, and every page of it is resident from the
# start. It grows beyond both only to hold one sequence of full length.
DEFAULT_KV_SHARE = 0.5
DEFAULT_KV_BYTES = 1 << 30
# A plan is made a second or two before its memory is taken, while others go on, and the engine's own process
# counts among them by then. Of 9.6 GiB that were free 10 to 210 MiB went meanwhile on a host of 24 GiB, so a
# plan for all of them was refused by its engine nearly each time. At most a 16th of what is free.
KEPT_FOR_OTHERS_BYTES = 512 << 20


class Planner:
    """One planning problem: how many blocks, and how long a sequence may be."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightIndex,
        config: RunnerConfig,
        device: DeviceInfo,
        resolve: Callable[[RunnerConfig], Shape],
        native_parts: Callable[[Shape], tuple[MemoryPart, ...]] | None = None,
    ) -> None:
        """`native_parts` gives all but the KV cache of the native runner; None plans for torch's.

        `resolve` makes every choice that a config leaves open.
        """
        self._resolve = resolve
        self._spec, self._weights, self._config, self._device = spec, weights, config, device
        self._native_parts = native_parts
        self._shape = resolve(config)
        self._block_bytes = memory_plan.kv_cache_spec(spec, self._shape).block_bytes
        self._num_host_blocks = config.swap_bytes // self._block_bytes
        self._limit = device.free_bytes
        if config.memory_fraction is not None:
            self._limit = min(self._limit, int(config.memory_fraction * device.total_bytes))

    def plan(self) -> MemoryPlan:
        shape = self._shape
        if self._config.num_blocks is not None:
            capacity = (self._config.num_blocks - 1) * shape.block_size
            if capacity < 1:
                raise DoesNotFit(
                    f"num_gpu_blocks_override {self._config.num_blocks} leaves no block for a sequence "
                    "beside the scratch block; use at least 2"
                )
            if self._config.max_model_len is None:
                shape = shape.with_max_model_len(min(shape.max_model_len, capacity))
            elif capacity < shape.max_model_len:
                raise DoesNotFit(
                    f"max_model_len {shape.max_model_len} needs {shape.blocks_per_sequence + 1} KV blocks of "
                    f"{shape.block_size} tokens and num_gpu_blocks_override is {self._config.num_blocks}; "
                    f"raise num_gpu_blocks_override or lower max_model_len to {capacity}"
                )
            num_blocks = self._config.num_blocks
            if num_blocks > self._max_blocks(shape):
                raise self._does_not_fit(shape, num_blocks)
        else:
            shape = self._fitting(shape)
            num_blocks = self._default_blocks(shape)
        kv = memory_plan.kv_cache_spec(self._spec, shape)
        weights, *others = self._fixed_parts(shape)
        context = MemoryPart("context", self._context_bytes)
        return MemoryPlan(
            kv=kv,
            num_blocks=(num_blocks,),
            num_host_blocks=self._num_host_blocks,
            parts=(weights, MemoryPart("kv", num_blocks * kv.block_bytes), *others, context),
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len,
        )

    def _fixed_parts(self, shape: Shape) -> tuple[MemoryPart, ...]:
        """All but the KV cache. The swap space is host memory like any other here."""
        host = memory_plan.host_kv_part(self._num_host_blocks * self._block_bytes)
        if self._native_parts is not None:
            return self._native_parts(shape) + host
        return memory_plan.fixed_parts(self._spec, self._weights, shape) + host

    @property
    def _context_bytes(self) -> int:
        process = NATIVE_PROCESS_BYTES
        if self._native_parts is None:
            process = TRANSFORMERS_PROCESS_BYTES if self._spec.shapes_only else TORCH_PROCESS_BYTES
        return process + TOKENIZER_TOKEN_BYTES * self._spec.num_tokens

    def _fixed_bytes(self, shape: Shape) -> int:
        margin = MARGIN_BYTES if self._native_parts is None else NATIVE_MARGIN_BYTES
        return self._context_bytes + margin + sum(part.size_bytes for part in self._fixed_parts(shape))

    def _max_blocks(self, shape: Shape) -> int:
        """KV blocks that fit beside everything else."""
        return (self._limit - self._fixed_bytes(shape)) // self._block_bytes

    def _fitting(self, shape: Shape) -> Shape:
        """`shape` if one sequence of full length fits; else shortened, if the length was not asked for."""
        if self._max_blocks(shape) >= shape.blocks_per_sequence + 1:
            return shape
        longest = self._longest(shape)
        if longest is None or self._config.max_model_len is not None:
            raise self._does_not_fit(shape, shape.blocks_per_sequence + 1)
        return shape.with_max_model_len(longest)

    def _longest(self, shape: Shape) -> int | None:
        """The largest length of whole blocks at which one sequence fits; None if not even one block does."""
        low, high = 0, shape.blocks_per_sequence
        while low < high:  # the bytes needed grow with the length
            middle = (low + high + 1) // 2
            trial = shape.with_max_model_len(middle * shape.block_size)
            low, high = (middle, high) if self._max_blocks(trial) >= middle + 1 else (low, middle - 1)
        return low * shape.block_size if low else None

    def _default_blocks(self, shape: Shape) -> int:
        wanted = shape.max_num_seqs * shape.blocks_per_sequence + 1
        room = self._max_blocks(shape)
        if self._config.memory_fraction is None:
            share = int(room * DEFAULT_KV_SHARE)
            room = min(share, DEFAULT_KV_BYTES // self._block_bytes)
        else:
            free = self._device.free_bytes
            kept = min(KEPT_FOR_OTHERS_BYTES, free // 16)
            room = min(room, (free - kept - self._fixed_bytes(shape)) // self._block_bytes)
        return min(wanted, max(shape.blocks_per_sequence + 1, room))

    def _does_not_fit(self, shape: Shape, num_blocks: int) -> DoesNotFit:
        """With both numbers, and the smallest change that fits."""
        needed = self._fixed_bytes(shape) + num_blocks * self._block_bytes
        kv = num_blocks * self._block_bytes
        return DoesNotFit(
            f"max_model_len {shape.max_model_len} with {num_blocks} KV blocks needs {_gib(needed)} "
            f"({_gib(kv)} of it KV cache) and {_gib(self._limit)} may be used; {self._remedy(shape, needed)}"
        )

    def _remedy(self, shape: Shape, needed: int) -> str:
        device, config = self._device, self._config
        wider = ""
        if config.memory_fraction is not None and needed <= device.free_bytes:
            percent = -(-100 * needed // device.total_bytes)  # as engine/capacity.py offers it
            wider = f"raise gpu_memory_utilization to {percent / 100:.2f}"
        longest = self._longest(shape)
        swap_bytes = self._num_host_blocks * self._block_bytes
        if longest is None and 0 < needed - self._limit < swap_bytes:
            gib = (swap_bytes - needed + self._limit) / (1 << 30)
            return f"lower swap_space to {math.floor(10 * gib) / 10:g}"
        if config.num_blocks is not None and (room := self._max_blocks(shape)) >= 2:
            shorter = f"lower num_gpu_blocks_override to {room}"
        elif longest is not None:
            shorter = f"lower max_model_len to {longest}"
        elif shape.dtype == "f32" and self._fits_with(dtype="bf16"):
            shorter = "set dtype to bfloat16"
        elif fewer := self._fewer_sequences(shape.max_num_seqs):
            shorter = f"lower max_num_seqs to {fewer}"
        else:
            shorter = (
                "" if wider else f"free {_gib(needed - self._limit)} of memory or choose a smaller model"
            )
        return " or ".join(change for change in (wider, shorter) if change)

    def _fewer_sequences(self, too_many: int) -> int | None:
        """The largest power of two of sequences that fits."""
        smaller = (1 << exponent for exponent in reversed(range((too_many - 1).bit_length())))
        return next((count for count in smaller if self._fits_with(max_num_seqs=count)), None)

    def _fits_with(self, **changed: Any) -> bool:
        config = replace(self._config, **changed)
        other = Planner(self._spec, self._weights, config, self._device, self._resolve, self._native_parts)
        return other._longest(other._shape) is not None


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
