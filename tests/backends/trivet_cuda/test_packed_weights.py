"""Quantised matrices keep what their file says, to the bit; products of all layouts agree with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trivet.weights.dequantize import dequantize
from trivet_cuda import packed_weights, twins
from trivet_cuda.packed_weights import _groups, _words
from trivet_cuda.weight_kinds import WeightKind, kind_of, tensor_bytes

ROWS, COLUMNS = 6, 96
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}


def stored(kind: str) -> np.ndarray[Any, Any]:
    """Random blocks [rows, bytes] with small scales."""
    generator = np.random.default_rng(2)
    blocks = generator.integers(0, 256, (ROWS * COLUMNS // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    num_fields = 2 if kind == "q4_1" else 1
    fields = generator.normal(0, 0.1, (len(blocks), num_fields)).astype("<f2")
    blocks[:, : 2 * num_fields] = fields.view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_values_are_those_of_the_file(kind: str) -> None:
    file = stored(kind)
    values, scales, offsets = _groups(file, kind)
    weight = values.t().contiguous() if kind == "q8_0" else _words(values.t())
    kept = twins.unpacked(weight, scales.t(), None if kind == "q8_0" else offsets.t(), torch.float32)
    np.testing.assert_allclose(kept.t().numpy(), dequantize(file, kind, (ROWS, COLUMNS)), atol=1e-6)
    x = torch.randn((3, COLUMNS), generator=torch.Generator().manual_seed(1))
    product = twins.group_matmul(x, weight, scales.t(), None if kind == "q8_0" else offsets.t(), 90)
    torch.testing.assert_close(product, x @ kept)


def test_what_is_in_8_bits_is_not_unpacked_from_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large matrix that is twice its size of the host's memory, for nothing."""
    monkeypatch.setattr(packed_weights, "nibbles", lambda stored: pytest.fail("unpacked"))
    values, _, _ = _groups(stored("q8_0"), "q8_0")
    assert values.shape == (ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("weights", "dtype", "name", "formats", "columns", "kind"),
    [
        ("auto", "bf16", "layers.0.qkv", ("q4_0", "q4_1", "q4_0"), 64, WeightKind.W4A16),
        ("auto", "f16", "layers.0.down", ("q8_0",), 64, WeightKind.W8A16),
        ("auto", "bf16", "layers.0.qkv", ("q4_0", "q8_0"), 64, WeightKind.PLAIN),
        ("auto", "bf16", "layers.0.o", ("q4_k",), 256, WeightKind.PLAIN),
        ("auto", "bf16", "head", ("q8_0",), 64, WeightKind.PLAIN),
        ("auto", "f32", "layers.0.o", ("q4_0",), 64, WeightKind.PLAIN),
        ("plain", "bf16", "layers.0.o", ("q4_0",), 64, WeightKind.PLAIN),
        ("auto", "bf16", "layers.0.o", ("q4_0",), 48, WeightKind.PLAIN),
    ],
)
def test_a_matrix_stays_quantised_where_a_kernel_takes_it(
    weights: str, dtype: str, name: str, formats: tuple[str, ...], columns: int, kind: WeightKind
) -> None:
    assert kind_of(weights, dtype, name, formats, columns) == kind


def test_bytes_are_counted_with_their_scales() -> None:
    assert tensor_bytes(WeightKind.W4A16, 64, 64, 2) == (64 * 64 // 2, 64 * 2 * 2, 64 * 2 * 2)
    assert tensor_bytes(WeightKind.W8A16, 64, 64, 2) == (64 * 64, 64 * 2 * 2)
    assert tensor_bytes(WeightKind.PLAIN, 64, 64, 2) == (64 * 64 * 2,)
