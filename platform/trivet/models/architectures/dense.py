"""The one shape that Llama, Mistral and Qwen share: pre-norm layers of attention and gated MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.errors import UnsupportedArchitecture
from trivet.models.architectures.config_values import ConfigValues
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope

MAX_LAYERS = 10_000
MAX_HEADS = 1 << 16
MAX_WIDTH = 1 << 24

# transformers' names of activations (ACT2FN) to those of spec.MLP
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of every layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_heads(values: ConfigValues, hidden_size: int, *, head_dim: int | None = None) -> Heads:
    """Heads from a Hugging Face config; `head_dim` is the family's default, else hidden_size / heads.

    Raises: ModelFilesError.
    """
    num_heads = values.integer("num_attention_heads", most=MAX_HEADS)
    num_kv_heads = values.integer("num_key_value_heads", num_heads, most=MAX_HEADS)
    if num_heads % num_kv_heads:
        raise values.wrong("num_key_value_heads", f"a divisor of num_attention_heads {num_heads}")
    if values.get("head_dim") is None and head_dim is None and hidden_size % num_heads:
        raise values.wrong("num_attention_heads", f"a divisor of hidden_size {hidden_size}")
    dim = values.integer("head_dim", head_dim or hidden_size // num_heads, most=1 << 16)
    if dim % 2:
        raise values.wrong("head_dim", "even, for rotary positions")
    return Heads(num_heads, num_kv_heads, dim)


def read_activation(values: ConfigValues) -> str:
    """Raises: UnsupportedArchitecture for one that our kernels lack."""
    name = values.text("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedArchitecture(
            f"{values.source}: hidden_act is {name!r}; our decoder has {', '.join(sorted(ACTIVATIONS))}: "
            "only transformers can run this model"
        )
    return ACTIVATIONS[name]


@dataclass(frozen=True, slots=True)
class Dense:
    """What a family's reader found; `build` makes the spec."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    heads: Heads
    rope: Rope
    norm: Norm
    mlp: MLP
    windows: Sequence[int | None]  # of each layer
    tie_embeddings: bool
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    scale: float | None = None  # of attention scores; None: head_dim ** -0.5

    def build(self) -> ModelSpec:
        distinct = tuple(dict.fromkeys(self.windows))
        return ModelSpec(
            architecture=self.architecture,
            vocab_size=self.vocab_size,
            num_tokens=self.vocab_size,
            hidden_size=self.hidden_size,
            max_position=self.max_position,
            kinds=tuple(Layer(self._attention(window), self.mlp) for window in distinct),
            layers=tuple(distinct.index(window) for window in self.windows),
            norm=self.norm,
            tie_embeddings=self.tie_embeddings,
        )

    def _attention(self, window: int | None) -> Attention:
        return Attention(
            num_heads=self.heads.num_heads,
            num_kv_heads=self.heads.num_kv_heads,
            head_dim=self.heads.head_dim,
            scale=self.heads.head_dim**-0.5 if self.scale is None else self.scale,
            rope=self.rope,
            window=window,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            qk_norm=self.norm if self.qk_norm else None,
        )


def read_num_layers(values: ConfigValues, name: str = "num_hidden_layers") -> int:
    """Raises: ModelFilesError."""
    return values.integer(name, most=MAX_LAYERS)


def read_width(values: ConfigValues, name: str) -> int:
    """Raises: ModelFilesError."""
    return values.integer(name, most=MAX_WIDTH)
