"""From the tensor names of Hugging Face and GGUF files to the canonical names of `weights/index.py`."""

from __future__ import annotations

import re
from types import MappingProxyType

HF_TOP = MappingProxyType(
    {
        "embed_tokens.weight": "embed.weight",
        "norm.weight": "norm.weight",
        "lm_head.weight": "head.weight",
        "lm_head.bias": "head.bias",
    }
)
HF_LAYER = MappingProxyType(
    {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn.q_proj": "q",
        "self_attn.k_proj": "k",
        "self_attn.v_proj": "v",
        "self_attn.o_proj": "o",
        "self_attn.q_norm": "q_norm",
        "self_attn.k_norm": "k_norm",
        "mlp.gate_proj": "gate",
        "mlp.up_proj": "up",
        "mlp.down_proj": "down",
    }
)
GGUF_TOP = MappingProxyType(
    {
        "token_embd.weight": "embed.weight",
        "output_norm.weight": "norm.weight",
        "output.weight": "head.weight",
        "output.bias": "head.bias",
    }
)
GGUF_LAYER = MappingProxyType(
    {
        "attn_norm": "attention_norm",
        "ffn_norm": "mlp_norm",
        "attn_q": "q",
        "attn_k": "k",
        "attn_v": "v",
        "attn_output": "o",
        "attn_q_norm": "q_norm",
        "attn_k_norm": "k_norm",
        "ffn_gate": "gate",
        "ffn_up": "up",
        "ffn_down": "down",
    }
)
_HF_IN_LAYER = re.compile(r"layers\.(\d{1,6})\.(.+)\.(weight|bias)")
_GGUF_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)\.(weight|bias)")


def from_hf(name: str) -> str | None:
    """Canonical name, or None for a tensor that no spec of ours has.

    Files saved from the bare model (embedding models) lack the prefix `model.`.
    """
    name = name.removeprefix("model.")
    return HF_TOP.get(name) or _in_layer(_HF_IN_LAYER.fullmatch(name), HF_LAYER)


def from_gguf(name: str) -> str | None:
    """Canonical name, or None for a tensor that no spec of ours has."""
    return GGUF_TOP.get(name) or _in_layer(_GGUF_IN_LAYER.fullmatch(name), GGUF_LAYER)


def _in_layer(found: re.Match[str] | None, names: MappingProxyType[str, str]) -> str | None:
    if found is None or found[2] not in names:
        return None
    return f"layers.{int(found[1])}.{names[found[2]]}.{found[3]}"
