"""An architecture as data: all that the mathematics needs, and nothing about files.

Weight names, fused tensors and file layouts are mapped to canonical names when weights are indexed
(`architectures/`); the generic decoder (`decoder.py`) and the native kernels read only this.
Symbols of the canonical weight names are listed in `weights/index.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation over the last axis, computed in float32."""

    kind: str = "rms"  # "rms" | "layer"
    eps: float = 1e-6
    add_one: bool = False  # Gemma: the weight is 1 + w
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) and its context-extension variants.

    `params` by scaling: llama3 (low_freq_factor, high_freq_factor); yarn (beta_fast, beta_slow).
    dynamic and longrope are fixed once from max_model_len, so that cached keys stay valid.
    """

    dim: int  # the rotated part of the head
    theta: float = 10_000.0
    interleaved: bool = False  # pairs (0, 1), (2, 3)...; else the two halves
    scaling: str = "none"  # "none" | "linear" | "dynamic" | "llama3" | "yarn" | "longrope"
    factor: float = 1.0
    original_max_len: int = 0
    attention_factor: float = 1.0  # multiplies cos and sin
    params: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    truncate: bool = True  # yarn: round the correction range to whole dimensions


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2, section 2.1); a KV row is kv_rank + rope dim wide."""

    q_rank: int | None  # None: a plain q projection
    kv_rank: int
    qk_nope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; `num_heads` is a multiple of `num_kv_heads`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    alibi: bool = False
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None  # over head_dim, before rope
    latent: Latent | None = None


@dataclass(frozen=True, slots=True)
class MLP:
    """Feed-forward block: down(act(gate x) * up x), or down(act(up x)) where not gated."""

    intermediate_size: int
    activation: str = "silu"  # "silu" | "gelu" | "gelu_tanh" | "relu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoE:
    """Mixture of experts with a top-k router."""

    num_experts: int
    top_k: int
    intermediate_size: int
    scoring: str = "softmax"  # "softmax" | "sigmoid"
    renormalise: bool = True
    scale: float = 1.0
    choice_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"  # "max" | "top2_sum"
    shared_intermediate_size: int = 0
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of decoder layer."""

    attention: Attention
    mlp: MLP | MoE
    order: str = "pre"  # "pre" | "sandwich" (norms before and after) | "parallel" (one norm)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model.

    `kinds` holds the distinct layers, `layers` the kind of each layer in order.
    """

    architecture: str  # the name in the model's own config, "LlamaForCausalLM"
    vocab_size: int  # rows of the head, padding included
    num_tokens: int  # ids the tokenizer can make; rows beyond are never sampled
    hidden_size: int
    max_position: int
    kinds: tuple[Layer, ...]
    layers: tuple[int, ...]
    norm: Norm
    tie_embeddings: bool = False
    head_bias: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_soft_cap: float | None = None
    # Sizes only: the mathematics is in transformers' own class (`transformers_fallback.py`).
    shapes_only: bool = False

    def layer(self, index: int) -> Layer:
        return self.kinds[self.layers[index]]

    @property
    def num_layers(self) -> int:
        return len(self.layers)
