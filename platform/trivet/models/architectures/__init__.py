"""Model architectures by the name under `architectures` in config.json, each a function to a ModelSpec.

Plugins add theirs through the hook `trivet_architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from trivet.models.architectures.llama import llama_spec, mistral_spec
from trivet.models.architectures.qwen import qwen2_spec, qwen3_spec
from trivet.models.spec import ModelSpec

ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Any]], ModelSpec]] = MappingProxyType(
    {
        "LlamaForCausalLM": llama_spec,
        "MistralForCausalLM": mistral_spec,
        "Qwen2ForCausalLM": qwen2_spec,
        "Qwen3ForCausalLM": qwen3_spec,
    }
)
