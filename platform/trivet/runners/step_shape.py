"""The sizes of a model's steps on a device with every choice made; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from trivet.contract import NO_ADAPTERS, AdapterSlots, DeviceInfo, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec

MAX_NUM_BATCHED_TOKENS = 2048  # where nothing is asked for: a step of an accelerator stays short with these
VALUE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "fp8_e4m3": 1, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What plan and runner agree on; a backend adds its own choices."""

    dtype: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logits_rows: int
    num_ranks: int
    adapters: AdapterSlots = NO_ADAPTERS

    @classmethod
    def resolved(cls, spec: ModelSpec, config: RunnerConfig, *, block_size: int, **own: Any) -> Self:
        """From the config.

        Args:
            block_size: where the config names none.
            own: fields of the subclass, and `dtype`.
        """
        tokens = config.max_num_batched_tokens or max(MAX_NUM_BATCHED_TOKENS, config.max_num_seqs)
        return cls(
            block_size=config.block_size or block_size,
            max_model_len=config.max_model_len or spec.max_position,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=tokens,
            max_logits_rows=config.max_logits_rows,
            num_ranks=config.tensor_parallel,
            adapters=config.adapters,
            **own,
        )

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def value_bytes(self) -> int:
        return VALUE_BYTES[self.dtype]

    def with_max_model_len(self, length: int) -> Self:
        return replace(self, max_model_len=length)


def resolve_dtype(dtype: str, device: DeviceInfo) -> str:
    """ "auto" is bf16 where the device has it. Raises: Unsupported."""
    if dtype == "auto":
        return "bf16" if "bf16" in device.dtypes else "f16"
    if dtype not in device.dtypes:
        raise Unsupported(
            f"dtype {dtype!r} is not supported on {device.name}; "
            f"use auto or {', '.join(sorted(device.dtypes))}"
        )
    return dtype
