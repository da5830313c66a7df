"""Llama 2, 3 and what is built like it (Yi, DeepSeek-R1-Distill-Llama, SmolLM2), and Mistral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.dense import Dense, read_activation, read_heads, read_num_layers, read_width
from trivet.models.architectures.rope_config import read_rope
from trivet.models.spec import MLP, ModelSpec, Norm

SOURCE = "config.json"


def llama_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises: ModelFilesError, UnsupportedArchitecture."""
    values = ConfigValues(config, SOURCE)
    attention_bias, mlp_bias = values.flag("attention_bias"), values.flag("mlp_bias")
    return _spec("LlamaForCausalLM", values, 2048, None, attention_bias, mlp_bias)


def mistral_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Raises: ModelFilesError, UnsupportedArchitecture."""
    values = ConfigValues(config, SOURCE)
    # A file without the key means the class's default; v0.2 and later write null: no window.
    window = 4096 if "sliding_window" not in config else None
    if values.get("sliding_window") is not None:
        window = values.integer("sliding_window")
    return _spec("MistralForCausalLM", values, 131_072, window, attention_bias=False, mlp_bias=False)


def _spec(
    architecture: str,
    values: ConfigValues,
    default_max_position: int,
    window: int | None,
    attention_bias: bool,
    mlp_bias: bool,
) -> ModelSpec:
    hidden_size = read_width(values, "hidden_size")
    heads = read_heads(values, hidden_size)
    rope, max_position = read_rope(values, heads.head_dim, default_max_position)
    return Dense(
        architecture=architecture,
        vocab_size=read_width(values, "vocab_size"),
        hidden_size=hidden_size,
        max_position=max_position,
        heads=heads,
        rope=rope,
        norm=Norm(eps=values.number("rms_norm_eps", 1e-6)),
        mlp=MLP(read_width(values, "intermediate_size"), read_activation(values), bias=mlp_bias),
        windows=[window] * read_num_layers(values),
        tie_embeddings=values.flag("tie_word_embeddings"),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
    ).build()
