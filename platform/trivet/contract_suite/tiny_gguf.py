"""The tiny random Llama as a quantised GGUF file, written as llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivet.contract_suite.gguf_oracle import IN_LAYER, TOP_LEVEL
from trivet.contract_suite.tiny_models import make_tiny_model

# Tensors of another type beside the file's own, which are joined with some of it on a device.
BESIDE = {"q4_0": {"attn_v": "q4_1"}}


def make_tiny_gguf(kind: str, folder: Path) -> Path:
    """Write the model "llama" below `folder`, its matrices in `kind` ("q4_0", "q4_1", "q8_0")."""
    import gguf
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(make_tiny_model("llama", folder))
    config, file = model.config, folder / f"llama-{kind}.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list([f"t{token}" for token in range(config.vocab_size)])
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        stored = _name(name)
        part = stored.split(".")[-2]
        values = parameter.detach().numpy()
        if part in heads:
            values = _permuted(values, heads[part])
        if values.ndim == 1:
            writer.add_tensor(stored, values)
            continue
        own = gguf.GGMLQuantizationType[BESIDE.get(kind, {}).get(part, kind).upper()]
        writer.add_tensor(stored, gguf.quants.quantize(np.ascontiguousarray(values), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _name(name: str) -> str:
    """GGUF's for transformers'; the inverse of `gguf_oracle`'s."""
    top_level = {theirs: stored for stored, theirs in TOP_LEVEL.items()}
    if name in top_level:
        return top_level[name]
    _, _, layer, *inner, kind = name.split(".")
    in_layer = {theirs: stored for stored, theirs in IN_LAYER.items()}
    return f"blk.{layer}.{in_layer['.'.join(inner)]}.{kind}"


def _permuted(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """The two halves of each head interleaved, as llama.cpp's LlamaModel.permute."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
