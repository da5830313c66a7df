"""Tiny random models, made with transformers' own config and model classes.

Weights are drawn wide on purpose: at the usual 0.02 the logits are flat, every position looks like every
other, and a runner that mixes them up would pass. Here logits spread over several units and attention is
sharp, so one wrong position, head or block changes the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MAX_MODEL_LEN = 512  # tokens; what the suite plans with, and the length that fixes dynamic rope
VOCAB_SIZE = 160
NAN_TOKEN = 7  # in the model "poisoned": its embedding row is NaN
INF_TOKEN = 11  # in the model "poisoned": its embedding row is Inf
NUM_TOKENS = 150  # of the model "padded-head", whose rows beyond have the largest logits
ORIGINAL_LEN = 128  # tokens; of the context-extension rope types


@dataclass(frozen=True)
class TinyModel:
    """A model to make: transformers' model type and what differs from the base shape."""

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    is_poisoned: bool = False
    is_sharded: bool = False
    num_tokens: int | None = None  # of its tokenizer, where the head has more rows
    dtype: str = "float32"


def _rope(kind: str, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **more}}


MODELS: Mapping[str, TinyModel] = {
    "llama": TinyModel("llama"),
    "llama-tied": TinyModel("llama", {"tie_word_embeddings": True}, seed=1, is_sharded=True),
    "llama-bf16-file": TinyModel("llama", seed=2, dtype="bfloat16"),
    "llama3-rope": TinyModel(
        "llama",
        _rope(
            "llama3",
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=ORIGINAL_LEN,
        ),
        seed=3,
    ),
    "yarn-rope": TinyModel("llama", _rope("yarn", original_max_position_embeddings=ORIGINAL_LEN), seed=4),
    "linear-rope": TinyModel("llama", _rope("linear"), seed=5),
    "dynamic-rope": TinyModel("llama", {**_rope("dynamic"), "max_position_embeddings": ORIGINAL_LEN}, seed=6),
    "qwen2": TinyModel("qwen2", seed=7),
    "qwen2-tied": TinyModel("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}, seed=8),
    "qwen3": TinyModel("qwen3", {"head_dim": 32}, seed=9),
    "mistral-window": TinyModel("mistral", {"sliding_window": 24}, seed=10),
    "mistral": TinyModel("mistral", {"sliding_window": None, "num_key_value_heads": 4}, seed=11),
    # Without a ModelSpec: transformers' own code with paged attention, where a backend has that.
    "olmo2": TinyModel("olmo2", seed=14),
    "granite": TinyModel("granite", {"residual_multiplier": 0.8, "attention_multiplier": 0.25}, seed=15),
    "starcoder2": TinyModel("starcoder2", {"sliding_window": 24}, seed=16),
    "padded-head": TinyModel("llama", seed=13, num_tokens=NUM_TOKENS),
    "poisoned": TinyModel("llama", seed=12, is_poisoned=True),
}

BASE_SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_tiny_model(name: str, folder: Path) -> Path:
    """Save the model of that name as safetensors and config.json in a new folder below `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    recipe = MODELS[name]
    config = AutoConfig.for_model(recipe.model_type, **{**BASE_SHAPE, **recipe.config})
    generator = torch.Generator().manual_seed(1_000 + recipe.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for tensor_name, tensor in model.named_parameters():
            _fill(tensor_name, tensor, generator)
        if recipe.num_tokens is not None:
            model.get_output_embeddings().weight[recipe.num_tokens :] *= 10
        if recipe.is_poisoned:
            model.get_input_embeddings().weight[NAN_TOKEN] = float("nan")
            model.get_input_embeddings().weight[INF_TOKEN] = float("inf")
            # A logit of 0 is never the largest: no healthy sequence draws a bad token.
            model.get_output_embeddings().weight[[NAN_TOKEN, INF_TOKEN]] = 0
    target = folder / name
    model.to(getattr(torch, recipe.dtype)).save_pretrained(
        target, max_shard_size="100KB" if recipe.is_sharded else "1GB"
    )
    if recipe.num_tokens is not None:
        vocabulary = {f"t{token}": token for token in range(recipe.num_tokens)}
        (target / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    return target


def _fill(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Draw a tensor so that hidden states keep their size and attention has a clear favourite."""
    tensor.normal_(generator=generator)
    if "norm" in name:
        tensor.mul_(0.2).add_(1)
    elif name.endswith("bias"):
        tensor.mul_(0.5)
    elif "embed_tokens" in name:
        tensor.mul_(0.3)
    elif "lm_head" in name:
        tensor.mul_(2.5 / tensor.shape[1] ** 0.5)
    elif "q_proj" in name or "k_proj" in name:
        tensor.mul_(1.2 / tensor.shape[1] ** 0.5)
    else:
        tensor.mul_(1 / tensor.shape[1] ** 0.5)
