"""The tensors that a spec needs, with their shapes, and the check that a model's files have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from trivet.errors import UnsupportedArchitecture, WeightsError
from trivet.models.spec import MLP
from trivet.weights.dequantize import UNPACKERS

if TYPE_CHECKING:
    from trivet.models.spec import Layer, ModelSpec
    from trivet.weights.index import TensorInfo, WeightIndex

Expected: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]

# Over the hidden size, by the order of a layer
NORMS = {
    "pre": ("attention_norm", "mlp_norm"),
    "sandwich": ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"),
    "parallel": ("attention_norm",),
}


def expected_tensors(spec: ModelSpec) -> Expected:
    """Canonical name and shape of every tensor that the decoder reads.

    Raises: UnsupportedArchitecture for parts that have no canonical names (experts, latents).
    """
    yield "embed.weight", (spec.vocab_size, spec.hidden_size)
    for index in range(spec.num_layers):
        for name, shape in _layer_tensors(spec.layer(index), spec):
            yield f"layers.{index}.{name}", shape
    yield from _norm("norm", spec.hidden_size, spec.norm.bias)
    if not spec.tie_embeddings:
        yield "head.weight", (spec.vocab_size, spec.hidden_size)
    if spec.head_bias:
        yield "head.bias", (spec.vocab_size,)


def check_tensors(spec: ModelSpec, weights: WeightIndex) -> None:
    """Every expected tensor is there, in its shape and in a format that can be read.

    Raises: WeightsError naming file and tensor, what was found and what was expected.
    """
    for name, shape in expected_tensors(spec):
        found = weights[name]
        if found.shape != shape:
            raise WeightsError(
                f"{found.file}: tensor {name!r} has the shape {list(found.shape)} and the model's config "
                f"asks for {list(shape)}; config and weights are of different models: fetch both again"
            )
        _check_format(found)


def _check_format(tensor: TensorInfo) -> None:
    if tensor.format not in UNPACKERS:
        raise WeightsError(
            f"{tensor.file}: tensor {tensor.name!r} is stored as {tensor.format!r}, which is not read; "
            f"read are {', '.join(UNPACKERS)}: convert the model to one of these"
        )


def _layer_tensors(layer: Layer, spec: ModelSpec) -> Expected:
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(mlp, MLP) or attention.latent is not None:
        raise UnsupportedArchitecture(
            f"{spec.architecture} has experts or latent attention, whose weights are not mapped: "
            "only transformers can run this model"
        )
    for name in NORMS[layer.order]:
        yield from _norm(name, spec.hidden_size, spec.norm.bias)
    rows_of = {
        "q": attention.num_heads * attention.head_dim,
        "k": attention.num_kv_heads * attention.head_dim,
        "v": attention.num_kv_heads * attention.head_dim,
    }
    for name, rows in rows_of.items():
        yield from _linear(name, rows, spec.hidden_size, attention.qkv_bias)
    if attention.qk_norm is not None:
        yield from _norm("q_norm", attention.head_dim, attention.qk_norm.bias)
        yield from _norm("k_norm", attention.head_dim, attention.qk_norm.bias)
    yield from _linear("o", spec.hidden_size, rows_of["q"], attention.out_bias)
    for name in ("gate", "up") if mlp.gated else ("up",):
        yield from _linear(name, mlp.intermediate_size, spec.hidden_size, mlp.bias)
    yield from _linear("down", spec.hidden_size, mlp.intermediate_size, mlp.bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Expected:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(name: str, size: int, bias: bool) -> Expected:
    yield f"{name}.weight", (size,)
    if bias:
        yield f"{name}.bias", (size,)
