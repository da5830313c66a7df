"""Qwen2 and Qwen2.5 (biases on q, k, v) and Qwen3 (per-head norms of q and k, explicit head_dim)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.dense import (
    MAX_LAYERS,
    Dense,
    read_activation,
    read_heads,
    read_num_layers,
    read_width,
)
from trivet.models.architectures.rope_config import read_rope
from trivet.models.spec import MLP, ModelSpec, Norm

SOURCE = "config.json"
DEFAULT_MAX_POSITION = 32_768
LAYER_TYPES = ("full_attention", "sliding_attention")


def qwen2_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises: ModelFilesError, UnsupportedArchitecture."""
    values = ConfigValues(config, SOURCE)
    return _spec("Qwen2ForCausalLM", values, qkv_bias=True, out_bias=False, qk_norm=False, head_dim=None)


def qwen3_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises: ModelFilesError, UnsupportedArchitecture."""
    values = ConfigValues(config, SOURCE)
    bias = values.flag("attention_bias")
    return _spec("Qwen3ForCausalLM", values, qkv_bias=bias, out_bias=bias, qk_norm=True, head_dim=128)


def _spec(
    architecture: str,
    values: ConfigValues,
    *,
    qkv_bias: bool,
    out_bias: bool,
    qk_norm: bool,
    head_dim: int | None,
) -> ModelSpec:
    hidden_size = read_width(values, "hidden_size")
    heads = read_heads(values, hidden_size, head_dim=head_dim)
    rope, max_position = read_rope(values, heads.head_dim, DEFAULT_MAX_POSITION)
    return Dense(
        architecture=architecture,
        vocab_size=read_width(values, "vocab_size"),
        hidden_size=hidden_size,
        max_position=max_position,
        heads=heads,
        rope=rope,
        norm=Norm(eps=values.number("rms_norm_eps", 1e-6)),
        mlp=MLP(read_width(values, "intermediate_size"), read_activation(values)),
        windows=_windows(values, read_num_layers(values)),
        tie_embeddings=values.flag("tie_word_embeddings"),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=qk_norm,
    ).build()


def _windows(values: ConfigValues, num_layers: int) -> list[int | None]:
    """The window of each layer: from `layer_types`, else on from layer `max_window_layers`.

    `sliding_window` stands in nearly every file and counts only where `use_sliding_window` is true.
    """
    if not values.flag("use_sliding_window"):
        return [None] * num_layers
    window = values.integer("sliding_window", 4096)
    types = values.get("layer_types")
    if types is None:
        first = values.integer("max_window_layers", 28, least=0, most=MAX_LAYERS)
        return [window if layer >= first else None for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or any(t not in LAYER_TYPES for t in types):
        raise values.wrong("layer_types", f"a list of {num_layers} of {', '.join(LAYER_TYPES)}")
    return [window if layer_type == "sliding_attention" else None for layer_type in types]
