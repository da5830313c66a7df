"""The sizes of a model that only transformers' own code can run, from its `config.json`.

They are enough for a memory plan. Neither torch nor transformers is imported (importing transformers'
configs takes seconds and brings torch in): what transformers can do is read in its source files.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivet.errors import UnsupportedArchitecture
from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.dense import MAX_LAYERS, MAX_WIDTH
from trivet.models.architectures.rope_config import MAX_POSITION
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm

# Names that configs give to one thing; the first that is there counts.
KEYS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "max_position": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
}
LARGEST = {"num_layers": MAX_LAYERS, "max_position": MAX_POSITION}
DEFAULT_MAX_POSITION = 2048
# Kinds of layers whose whole state is the keys and values of attention.
PAGED_LAYER_TYPES = {"full_attention", "sliding_attention"}


def outline_spec(config: Mapping[str, Any], num_tokens: int | None = None) -> ModelSpec:
    """A `ModelSpec` with `shapes_only` set; `num_tokens`: ids that the tokenizer can make, where known.

    Raises: ModelFilesError; UnsupportedArchitecture where transformers does not know the architecture, routes
        its attention past the AttentionInterface, or keeps state besides keys and values.
    """
    architecture = str((config.get("architectures") or ["(none)"])[0])
    _check_known(architecture, str(config.get("model_type", "")))
    _check_layers(architecture, config)
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_heads")
    attention = Attention(
        num_heads=heads,
        num_kv_heads=_num_kv_heads(config, heads),
        head_dim=_optional(config, "head_dim") or hidden // heads,
        scale=1.0,
        rope=None,
        soft_cap=ConfigValues(config, "config.json").number("attn_logit_softcapping", 0.0) or None,  # Gemma 2
    )
    vocab_size = _size(config, "vocab_size")
    mlp = MLP(_optional(config, "intermediate_size") or 4 * hidden)
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab_size,
        num_tokens=min(vocab_size, num_tokens or vocab_size),
        hidden_size=hidden,
        max_position=context_length(config) or DEFAULT_MAX_POSITION,
        kinds=(Layer(attention, mlp),),
        layers=(0,) * _size(config, "num_layers"),
        norm=Norm(),
        shapes_only=True,
    )


def context_length(config: Mapping[str, Any]) -> int:
    """The longest context that a config states, at the top or under `text_config`; 0 where it states none."""
    text = config.get("text_config")
    return _optional(config, "max_position") or (
        (_optional(text, "max_position") or 0) if isinstance(text, dict) else 0
    )


def _check_known(architecture: str, model_type: str) -> None:
    source = _modelling_source(model_type)
    if f"class {architecture}(" not in source:
        raise UnsupportedArchitecture(
            f"architecture {architecture} (model_type {model_type!r}) is known neither to Trivet nor to the "
            "installed transformers, and code that comes with a model is never run; update transformers, or "
            "offer the architecture in a plugin (hook trivet_architectures)"
        )
    if "_supports_attention_backend = True" not in source:
        raise UnsupportedArchitecture(
            f"architecture {architecture} has no spec in Trivet, and transformers' own code for it does not "
            "let the attention be replaced, so its KV cache cannot be paged: choose another model"
        )


def _modelling_source(model_type: str) -> str:
    """The modelling code that transformers has for a model type; empty where there is none."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return ""
    models = Path(found.submodule_search_locations[0]) / "models"
    name = re.sub(r"[^a-z0-9]", "_", model_type.lower())
    for module in (name, name.removesuffix("_text")):  # gemma3_text stands in the module of its family
        file = models / module / f"modeling_{module}.py"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return ""


def _check_layers(architecture: str, config: Mapping[str, Any]) -> None:
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigValues(config, "config.json").wrong("layer_types", "a list of texts")
    others = set(kinds) - PAGED_LAYER_TYPES
    others |= {"chunked attention"} if config.get("attention_chunk_size") else set()
    others |= {"an encoder"} if config.get("is_encoder_decoder") else set()
    others |= {"latent attention"} if config.get("kv_lora_rank") else set()
    if others:
        raise UnsupportedArchitecture(
            f"architecture {architecture} has no spec in Trivet and has {', '.join(sorted(others))}, which "
            "the path through transformers' own code does not page: choose another model"
        )


def _num_kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1  # Falcon, GPT-BigCode
    return _optional(config, "num_kv_heads") or heads


def _optional(config: Mapping[str, Any], name: str) -> int | None:
    """Raises: ModelFilesError for a number that no model has."""
    for key in KEYS.get(name, (name,)):
        value = config.get(key)
        if type(value) is int and value > 0:
            return ConfigValues(config, "config.json").integer(key, most=LARGEST.get(name, MAX_WIDTH))
    return None


def _size(config: Mapping[str, Any], name: str) -> int:
    value = _optional(config, name)
    if value is None:
        keys = " or ".join(KEYS.get(name, (name,)))
        raise UnsupportedArchitecture(
            f"config.json gives no {keys}; without it the memory of this model cannot be planned"
        )
    return value
