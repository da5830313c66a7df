"""Sizes that a device's operations are tested with; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from trivet.models.spec import MLP, ModelSpec


@dataclass(frozen=True, slots=True)
class OpSizes:
    """Of one kind of layer; a backend adds what else its operations depend on."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    rope_dim: int
    interleaved: bool = False
    has_qk_norm: bool = False
    window: int = 0
    soft_cap: float = 0.0
    norms_outputs: bool = False  # of attention and MLP, before they are added: sandwich norms
    norms_heads_alone: bool = False  # without a rotation behind it

    @classmethod
    def of_model(cls, spec: ModelSpec, **own: Any) -> Iterator[Self]:
        """Of each kind of layer of a dense model; `own` are fields of the subclass."""
        for layer in spec.kinds:
            assert isinstance(layer.mlp, MLP)  # decoder.check_dense
            attention, rope = layer.attention, layer.attention.rope
            yield cls(
                num_heads=attention.num_heads,
                num_kv_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                hidden_size=spec.hidden_size,
                intermediate_size=layer.mlp.intermediate_size,
                rope_dim=rope.dim if rope else attention.head_dim,
                interleaved=rope.interleaved if rope else False,
                has_qk_norm=attention.qk_norm is not None,
                window=attention.window or 0,
                soft_cap=attention.soft_cap or 0.0,
                norms_outputs=layer.order == "sandwich",
                norms_heads_alone=attention.qk_norm is not None and rope is None,
                **own,
            )
