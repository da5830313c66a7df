"""Tensor names of files to canonical names."""

from __future__ import annotations

import pytest

from trivet.models.architectures.tensor_names import from_gguf, from_hf


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("model.embed_tokens.weight", "embed.weight"),
        ("embed_tokens.weight", "embed.weight"),
        ("lm_head.weight", "head.weight"),
        ("model.layers.31.self_attn.q_proj.bias", "layers.31.q.bias"),
        ("layers.0.post_attention_layernorm.weight", "layers.0.mlp_norm.weight"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("model.layers.0.mlp.experts.3.gate_proj.weight", None),
        ("model.layers.x.mlp.gate_proj.weight", None),
        ("model.layers.0.mlp.gate_proj.qweight", None),
        ("visual.layers.0.mlp.gate_proj.weight", None),
    ],
)
def test_hugging_face_name(name: str, canonical: str | None) -> None:
    assert from_hf(name) == canonical


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("token_embd.weight", "embed.weight"),
        ("output_norm.weight", "norm.weight"),
        ("output.weight", "head.weight"),
        ("blk.12.attn_k_norm.weight", "layers.12.k_norm.weight"),
        ("blk.0.ffn_down.bias", "layers.0.down.bias"),
        ("blk.0.ffn_gate_exps.weight", None),
        ("rope_freqs.weight", None),
    ],
)
def test_gguf_name(name: str, canonical: str | None) -> None:
    assert from_gguf(name) == canonical
