"""The planning half of the null backend: any model, any host, a few bytes a token."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trivet.contract import (
    DeviceInfo,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    Runner,
    RunnerConfig,
)
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex

if TYPE_CHECKING:
    from trivet.contract import Float32

BLOCK_SIZE = 128  # tokens; unlike the CPU's 16, so that nobody can assume that
MAX_NUM_BATCHED_TOKENS = 2048
TOKEN_BYTES = 4  # a token's KV is the token itself
DTYPES = ("auto", "f32", "bf16", "f16")  # all the same here, for KV too


@dataclass(frozen=True, slots=True)
class NullOptions:
    """What tests may ask of the backend, by `RunnerConfig.options`. Steps are counted from 1."""

    step_ms: float = 0.0  # how long the device takes for a step; steps follow each other
    max_in_flight: int = 2
    out_of_memory_steps: tuple[int, ...] = ()  # "3" or "3,4": collect raises OutOfMemory for these
    device_lost_step: int = 0  # collect raises DeviceLost from this step on; 0: never
    nan_token: int = -1  # the KV of this token is NaN, so every later row of its sequence is
    notice: str = ""  # what the runner says of itself, see `optional_contract.GivesNotices`
    num_threads: int = 0  # no effect; operators may set it for any backend

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> NullOptions:
        """Raises: Unsupported naming the option and the known ones, or the value."""
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise Unsupported(f"option {unknown[0]!r} is unknown to the null backend; it knows: {known}")
        try:
            steps = options.get("out_of_memory_steps", "")
            parsed = cls(
                step_ms=float(options.get("step_ms", 0)),
                max_in_flight=int(options.get("max_in_flight", 2)),
                out_of_memory_steps=tuple(int(step) for step in steps.split(",") if step),
                device_lost_step=int(options.get("device_lost_step", 0)),
                nan_token=int(options.get("nan_token", -1)),
                notice=options.get("notice", ""),
            )
        except ValueError as error:
            raise Unsupported(f"an option of the null backend is not a number: {error}") from error
        if parsed.max_in_flight not in (1, 2):
            raise Unsupported(f"max_in_flight is {parsed.max_in_flight}; the null backend has 1 or 2")
        return parsed


class NullBackend:
    """One device that computes nothing."""

    name = "null"

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """The one device "null", with the host's memory."""
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid="null",
                name="no device",
                arch="none",
                total_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                free_bytes=free_bytes(),
                dtypes=frozenset({"f32"}),
            )
        ]

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Nothing."""
        return {}

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """As the contract."""
        NullOptions.parse(config.options)
        for name, dtype in (("dtype", config.dtype), ("kv_cache_dtype", config.kv_dtype)):
            if dtype not in DTYPES:
                raise Unsupported(
                    f"{name} {dtype!r} is unknown; use auto, bfloat16, float16 (or half) or float32"
                )
        if config.tensor_parallel != 1:
            raise Unsupported(
                f"tensor_parallel_size is {config.tensor_parallel}; the null backend has one device"
            )
        if config.block_size is not None and config.block_size < 1:
            raise Unsupported(f"block_size is {config.block_size}; it must be at least 1")
        if config.adapters.num_slots:
            raise Unsupported(
                "the null backend takes no adapters (LoRA); leave adapters and max_loras unset, or use "
                "another backend"
            )

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """Room for `max_num_seqs` sequences of full length, unless `num_blocks` says otherwise."""
        from trivet_null.model import weights_bytes

        block_size = config.block_size or BLOCK_SIZE
        max_model_len = config.max_model_len or spec.max_position
        num_blocks = config.num_blocks
        if num_blocks is None:
            num_blocks = 1 + config.max_num_seqs * -(-max_model_len // block_size)
        capacity = (num_blocks - 1) * block_size
        if config.max_model_len is None:
            max_model_len = min(max_model_len, capacity)
        if capacity < max_model_len or capacity < 1:
            raise DoesNotFit(
                f"max_model_len {max_model_len} does not fit {num_blocks} KV blocks of {block_size} tokens, "
                f"which hold {capacity}; lower max_model_len or raise num_gpu_blocks_override"
            )
        group = KVGroup(KVKind.FULL, tuple(range(spec.num_layers)), "int32", TOKEN_BYTES)
        kv = KVCacheSpec(block_size, (group,))
        num_host_blocks = config.swap_bytes // kv.block_bytes
        plan = MemoryPlan(
            kv=kv,
            num_blocks=(num_blocks,),
            num_host_blocks=num_host_blocks,
            parts=(
                MemoryPart("weights", weights_bytes(spec.num_tokens)),
                MemoryPart("kv", num_blocks * kv.block_bytes),
                MemoryPart("logits", logits_rows(config) * spec.num_tokens * 4),
                MemoryPart("host_kv", num_host_blocks * kv.block_bytes),
            ),
            max_num_batched_tokens=config.max_num_batched_tokens
            or max(MAX_NUM_BATCHED_TOKENS, config.max_num_seqs),
            max_model_len=max_model_len,
        )
        _check_fits(plan, config, devices[0])
        return plan

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """As the contract."""
        from trivet_null.runner import NullRunner

        return NullRunner(spec, config, plan, NullOptions.parse(config.options))

    def reference_logits(self, spec: ModelSpec, token_ids: Sequence[int]) -> Float32:
        """[T, V]: the documented function whose values the runner computes out of its KV blocks."""
        from trivet_null.model import NullModel

        return NullModel(spec.num_tokens).logits_after_each(token_ids)

    def reference_hidden(self, spec: ModelSpec, token_ids: Sequence[int]) -> Float32:
        """[T, hidden_size]: the same for the hidden states that are pooled."""
        from trivet_null.model import NullModel

        return NullModel(spec.num_tokens).hidden_after_each(token_ids, spec.hidden_size)


def free_bytes() -> int:
    """Of the host's memory, now."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def logits_rows(config: RunnerConfig) -> int:
    """Rows of the logits buffer; a batch with more is sampled in pieces."""
    return min(config.max_logits_rows, config.max_num_seqs, 32)


def _check_fits(plan: MemoryPlan, config: RunnerConfig, device: DeviceInfo) -> None:
    limit = device.free_bytes
    if config.memory_fraction is not None:
        limit = min(limit, int(config.memory_fraction * device.total_bytes))
    if plan.total_bytes > limit:
        raise DoesNotFit(
            f"the plan needs {plan.total_bytes} bytes and {limit} may be used; "
            "lower max_num_seqs or max_model_len"
        )
