"""The tensors that a spec needs, by the parts it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trivet.errors import UnsupportedArchitecture
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Latent, Layer, ModelSpec, MoE, Norm

ATTENTION = Attention(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, rope=None)
LAYER = Layer(ATTENTION, MLP(48))


def spec(layer: Layer = LAYER, norm: Norm = Norm(), **more: bool) -> ModelSpec:  # noqa: B008
    return ModelSpec("test", 50, 50, 16, 64, (layer,), (0,), norm, **more)


def test_plain_layer_has_its_nine_tensors_and_the_model_three() -> None:
    assert dict(expected_tensors(spec())) == {
        "embed.weight": (50, 16),
        "layers.0.attention_norm.weight": (16,),
        "layers.0.mlp_norm.weight": (16,),
        "layers.0.q.weight": (32, 16),
        "layers.0.k.weight": (16, 16),
        "layers.0.v.weight": (16, 16),
        "layers.0.o.weight": (16, 32),
        "layers.0.gate.weight": (48, 16),
        "layers.0.up.weight": (48, 16),
        "layers.0.down.weight": (16, 48),
        "norm.weight": (16,),
        "head.weight": (50, 16),
    }


BIASED = replace(LAYER, attention=replace(ATTENTION, qkv_bias=True, out_bias=True), mlp=MLP(48, bias=True))
VARIANTS = {
    "biases": (
        spec(BIASED, head_bias=True),
        {**{f"layers.0.{x}.bias": n for x, n in zip("qkvo", (32, 16, 16, 16), strict=True)}, "head.bias": 50}
        | {"layers.0.gate.bias": 48, "layers.0.up.bias": 48, "layers.0.down.bias": 16},
        set(),
    ),
    "tied": (spec(tie_embeddings=True), {}, {"head.weight"}),
    "norms of q and k": (
        spec(replace(LAYER, attention=replace(ATTENTION, qk_norm=Norm()))),
        {"layers.0.q_norm.weight": 8, "layers.0.k_norm.weight": 8},
        set(),
    ),
    "not gated": (spec(replace(LAYER, mlp=MLP(48, gated=False))), {}, {"layers.0.gate.weight"}),
    "parallel": (spec(replace(LAYER, order="parallel")), {}, {"layers.0.mlp_norm.weight"}),
    "sandwich": (
        spec(replace(LAYER, order="sandwich")),
        {"layers.0.attention_post_norm.weight": 16, "layers.0.mlp_post_norm.weight": 16},
        set(),
    ),
    "layer norms with biases": (
        spec(norm=Norm("layer", bias=True)),
        {"norm.bias": 16, "layers.0.attention_norm.bias": 16, "layers.0.mlp_norm.bias": 16},
        set(),
    ),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_variant_adds_and_lacks_its_tensors(case: str) -> None:
    varied, added, lacking = VARIANTS[case]
    plain, found = dict(expected_tensors(spec())), dict(expected_tensors(varied))
    assert {name: shape for name, shape in found.items() if name not in plain} == {
        name: (size,) for name, size in added.items()
    }
    assert plain.keys() - found.keys() == lacking


@pytest.mark.parametrize(
    "layer",
    [
        replace(LAYER, mlp=MoE(8, 2, 48)),
        replace(LAYER, attention=replace(ATTENTION, latent=Latent(None, 8, 8, 8))),
    ],
)
def test_parts_without_names_are_left_to_transformers(layer: Layer) -> None:
    with pytest.raises(UnsupportedArchitecture, match="test has experts or latent attention"):
        list(expected_tensors(spec(layer)))
