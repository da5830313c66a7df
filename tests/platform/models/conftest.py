"""Tiny random models of transformers' own classes, saved as folders and written as GGUF."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SaveTiny = Callable[..., transformers.PreTrainedModel]
WriteGGUF = Callable[..., Path]


@pytest.fixture
def save_tiny() -> SaveTiny:
    """save_tiny(folder, "llama", max_shard_size="5GB", **config) saves a random float32 model."""

    def save(
        folder: Path, family: str, max_shard_size: str = "5GB", **config: Any
    ) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        hf = transformers.AutoConfig.for_model(family, **{**SIZES, **config})
        model = transformers.AutoModelForCausalLM.from_config(hf)
        for parameter in model.parameters():  # norms and biases would all be ones and zeros
            parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        return model

    return save


def permuted(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """The order in which llama.cpp's converter writes q and k of llama models (LlamaModel.permute)."""
    split = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"},
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}


def gguf_tensors(model: transformers.PreTrainedModel, is_permuted: bool) -> dict[str, NDArray[np.float32]]:
    """The model's parameters under GGUF's names, in GGUF's row order."""
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    tensors = {}
    for name, value in model.named_parameters():
        parts = name.removeprefix("model.").split(".")
        block = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        stem = GGUF_NAMES[".".join(parts[2 if block else 0 : -1])]
        array = value.detach().numpy()
        if is_permuted and stem in heads:
            array = permuted(array, heads[stem])
        tensors[f"{block}{stem}.{parts[-1]}"] = array
    return tensors


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


@pytest.fixture
def write_gguf() -> WriteGGUF:
    """write_gguf(path, model, add=..., tensors=..., kinds=...) writes a model as llama.cpp's converter does.

    `add` is called with the writer; `drop_first` are keys to go before that, `drop_keys` after;
    `tensors` replaces or (None) drops; `kinds` quantises matrices by name.
    """

    def write(
        path: Path,
        model: transformers.PreTrainedModel,
        *,
        architecture: str | None = None,
        add: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
        tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
        kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
        drop_first: tuple[str, ...] = (),
        drop_keys: tuple[str, ...] = (),
    ) -> Path:
        name = architecture or model.config.model_type.replace("mistral", "llama")
        writer = gguf.GGUFWriter(path, name)
        add_sizes(writer, model.config)
        for key in drop_first:
            del writer.kv_data[0][f"{name}.{key}"]
        add(writer)
        for key in drop_keys:
            del writer.kv_data[0][f"{name}.{key}"]
        for tensor, array in {**gguf_tensors(model, name == "llama"), **(tensors or {})}.items():
            kind = (kinds or {}).get(tensor)
            if array is None:
                continue
            if kind is None:
                writer.add_tensor(tensor, np.ascontiguousarray(array))
            else:
                writer.add_tensor(tensor, gguf.quants.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
