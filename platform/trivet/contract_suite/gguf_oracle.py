"""transformers with the weights of a GGUF file of the Llama family, read by the `gguf` package.

transformers reads GGUF itself, but only beside `accelerate`; and the suite wants no reader of ours here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trivet.contract_suite.oracle import TransformersOracle

if TYPE_CHECKING:
    from transformers import LlamaConfig

TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf_oracle(file: Path, max_model_len: int, num_tokens: int) -> TransformersOracle:
    """The oracle of a GGUF file of architecture "llama"."""
    return TransformersOracle(read_gguf_model(file), max_model_len, num_tokens)


def read_gguf_model(file: Path) -> Any:
    """The same as a LlamaForCausalLM of transformers, in float32."""
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import LlamaForCausalLM

    reader = GGUFReader(file)
    config = _config(reader)
    state = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        name = _name(tensor.name)
        if name.endswith("q_proj.weight"):
            values = _unpermuted(values, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            values = _unpermuted(values, config.num_key_value_heads)
        state[name] = torch.from_numpy(np.array(values, np.float32))
    config.tie_word_embeddings = "lm_head.weight" not in state
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def _config(reader: Any) -> LlamaConfig:
    from transformers import LlamaConfig

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        attn_implementation="eager",
    )


def _name(name: str) -> str:
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{IN_LAYER[part]}.{kind}"


def _unpermuted(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """llama.cpp's converter interleaves the two halves of each head; put them back."""
    size = rows.shape[0] // num_heads
    halves = rows.reshape(num_heads, size // 2, 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
