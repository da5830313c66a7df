"""Adapters (LoRA), which this version does not serve: every place where users would give one says so."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.errors import ConfigError, UnsupportedParameter

NO_ADAPTERS = "this version serves no adapters (LoRA): merge it into its model's weights, and launch these"
# vLLM's names of what an engine would be told of them.
_SETTINGS = frozenset(
    {
        *("enable_lora", "lora_modules", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype"),
        *("lora_extra_vocab_size", "long_lora_scaling_factors", "fully_sharded_loras"),
        *("enable_prompt_adapter", "max_prompt_adapters", "max_prompt_adapter_token", "default_mm_loras"),
    }
)


def without_adapter_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of an engine without those that ask for no adapter. Raises: ConfigError for one that asks."""
    for name in sorted(given.keys() & _SETTINGS):
        if given[name].lower() not in ("false", "none", "null", ""):
            raise ConfigError(f"{name} is {given[name]!r}; {NO_ADAPTERS}")
    return {name: value for name, value in given.items() if name not in _SETTINGS}


def refuse_adapter(lora_request: object) -> None:
    """Raises: UnsupportedParameter for any."""
    if lora_request is not None:
        raise UnsupportedParameter(
            f"lora_request is {str(lora_request)[:80]}; {NO_ADAPTERS}", param="lora_request"
        )
