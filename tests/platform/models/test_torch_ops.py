"""Each operation against its formula in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from trivet.models.rope import inverse_frequencies
from trivet.models.spec import Norm, Rope
from trivet.models.torch_ops import TorchOps

MAX_MODEL_LEN = 4096


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _norm_formula(x: Tensor, weight: Tensor, bias: Tensor | None, spec: Norm) -> Tensor:
    x, weight = x.double(), weight.double()
    if spec.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    scaled = x / torch.sqrt(x.square().mean(-1, keepdim=True) + spec.eps)
    scaled = scaled * (1 + weight if spec.add_one else weight)
    return scaled if bias is None else scaled + bias.double()


@pytest.mark.parametrize("shape", [(5, 32), (5, 3, 32)], ids=["hidden", "heads"])
@pytest.mark.parametrize(
    "spec",
    [
        Norm(),
        Norm(eps=0.5),
        Norm(add_one=True),
        Norm(bias=True),
        Norm("layer", 1e-5),
        Norm("layer", 1e-5, add_one=True, bias=True),
    ],
    ids=str,
)
def test_norm(spec: Norm, shape: tuple[int, ...]) -> None:
    ops = TorchOps("f32", MAX_MODEL_LEN)
    x, weight = 3 * _random(*shape), _random(32, seed=1)
    bias = _random(32, seed=2) if spec.bias else None
    normed, unchanged = ops.norm(x, ops.pack("norm", [weight], "none", bias), spec)
    torch.testing.assert_close(normed.double(), _norm_formula(x, weight, bias, spec), atol=1e-5, rtol=1e-5)
    assert torch.equal(unchanged, x)


def test_norm_adds_the_residual_and_hands_the_sum_on() -> None:
    ops = TorchOps("f32", MAX_MODEL_LEN)
    x, residual, weight = _random(4, 16), _random(4, 16, seed=1), _random(16, seed=2)
    normed, total = ops.norm(x, ops.pack("norm", [weight], "none"), Norm(), residual)
    torch.testing.assert_close(total, x + residual)
    expected = _norm_formula(x + residual, weight, None, Norm())
    torch.testing.assert_close(normed.double(), expected, atol=1e-5, rtol=1e-5)


def test_under_bf16_the_residual_stream_keeps_what_bf16_would_round_away() -> None:
    ops = TorchOps("bf16", MAX_MODEL_LEN)
    table = ops.pack("embed", [torch.full((2, 8), 256.0)], "vocab")
    weight = ops.pack("norm", [torch.ones(8)], "none")
    x = ops.embed(torch.tensor([1]), table)
    for _ in range(4):  # each alone is half a unit in the last place of 256 in bf16
        normed, x = ops.norm(x, weight, Norm(), torch.full((1, 8), 0.5, dtype=torch.bfloat16))
    assert x[0, 0].item() == 258.0
    assert normed.dtype == torch.bfloat16


def _rope_formula(x: Tensor, positions: Tensor, spec: Rope) -> Tensor:
    """Pair by pair, as complex numbers."""
    frequencies, factor = inverse_frequencies(spec, MAX_MODEL_LEN)
    out = x.double().clone()
    for token, position in enumerate(positions.tolist()):
        for i, frequency in enumerate(np.float64(frequencies)):
            first, second = (2 * i, 2 * i + 1) if spec.interleaved else (i, i + spec.dim // 2)
            cos, sin = factor * math.cos(position * frequency), factor * math.sin(position * frequency)
            a, b = x[token, :, first].double(), x[token, :, second].double()
            out[token, :, first], out[token, :, second] = a * cos - b * sin, b * cos + a * sin
    return out


@pytest.mark.parametrize("is_fused", [True, False], ids=["slices of one product", "separate"])
@pytest.mark.parametrize(
    "spec",
    [
        Rope(16),
        Rope(16, interleaved=True),
        Rope(8),
        Rope(8, interleaved=True),
        Rope(16, attention_factor=1.3),
    ],
    ids=["halves", "interleaved", "partial", "partial interleaved", "factor"],
)
def test_rope(spec: Rope, is_fused: bool) -> None:
    ops = TorchOps("f32", MAX_MODEL_LEN)
    qkv, positions = _random(3, 8, 16), torch.tensor([0, 7, 3000])
    q, k = qkv[:, :4], qkv[:, 4:6]
    if not is_fused:
        q, k = q.clone(), k.clone()
    for tensor, turned in zip((q, k), ops.rope(q, k, positions, spec), strict=True):
        torch.testing.assert_close(
            turned.double(), _rope_formula(tensor, positions, spec), atol=1e-3, rtol=1e-3
        )


def test_rope_follows_the_positions_of_each_step() -> None:
    ops, spec = TorchOps("f32", MAX_MODEL_LEN), Rope(16)
    q, k = _random(1, 2, 16), _random(1, 1, 16, seed=1)
    turned = [ops.rope(q, k, torch.tensor([position]), spec)[0] for position in (1, 2)]
    assert not torch.allclose(*turned)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("relu", F.relu),
    ],
)
@pytest.mark.parametrize("is_gated", [True, False])
def test_activation(kind: str, formula: object, is_gated: bool) -> None:
    gate, up = _random(3, 8), _random(3, 8, seed=1)
    expected = formula(gate) * (up if is_gated else 1)  # type: ignore[operator]
    actual = TorchOps("f32", 8).activation(gate, up if is_gated else None, kind)
    torch.testing.assert_close(actual, expected)
