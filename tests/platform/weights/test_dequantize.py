"""Every unpacker against the `gguf` package on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.errors import WeightsError
from trivet.weights import dequantize as module
from trivet.weights.dequantize import UNPACKERS, dequantize
from trivet.weights.formats import FORMATS, GGML_TYPES, row_bytes

NUMBERS = {name: number for number, name in GGML_TYPES.items()}
# What the package dequantises: its table of classes, and the two types that it views directly.
PACKAGE_FORMATS = sorted({"f32", "f16"} | {kind.name.lower() for kind in gguf.quants._type_traits})


def random_bytes(kind: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    rows, columns = shape
    return np.random.default_rng(7).integers(0, 256, (rows, row_bytes(kind, columns)), np.uint8)


def package_values(raw: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(NUMBERS[kind]))
    return np.asarray(values, np.float32)


def test_every_type_of_the_package_has_an_unpacker() -> None:
    assert set(PACKAGE_FORMATS) <= set(UNPACKERS)


@pytest.mark.parametrize("kind", PACKAGE_FORMATS)
def test_random_bytes_give_the_package_values_exactly(kind: str) -> None:
    shape = (37, 2 * max(256, FORMATS[kind].block_size))
    raw = random_bytes(kind, shape)
    ours = dequantize(raw, kind, shape)
    assert ours.dtype == np.float32
    assert ours.shape == shape
    np.testing.assert_array_equal(ours, package_values(raw, kind))


@pytest.mark.parametrize("kind", ["q4_1", "q6_k", "iq3_s", "f16"])
def test_values_do_not_depend_on_the_chunk(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (5, 768)
    raw = random_bytes(kind, shape)
    whole = dequantize(raw, kind, shape)
    monkeypatch.setattr(module, "CHUNK_VALUES", 256)
    np.testing.assert_array_equal(dequantize(raw, kind, shape), whole)


def test_float64_is_rounded_once() -> None:
    values = np.array([[1 / 3, -2.5e-7]])
    np.testing.assert_array_equal(dequantize(values.view(np.uint8), "f64", (1, 2)), values.astype(np.float32))


def test_result_is_a_fresh_writable_array() -> None:
    raw = np.zeros((1, 8), np.uint8)
    dequantize(raw, "f32", (1, 2))[0, 0] = 1
    assert not raw.any()


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        WeightsError, match=r"'q8_k' cannot be turned into float32; types that can: f32, .*q4_1"
    ):
        dequantize(np.zeros(292, np.uint8), "q8_k", (256,))


def test_size_that_does_not_fit_the_shape_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"36 bytes of q4_0 do not fit the shape \[32\]"):
        dequantize(np.zeros(36, np.uint8), "q4_0", (32,))


def test_empty_tensor_has_no_values() -> None:
    assert dequantize(np.zeros(0, np.uint8), "q4_0", (0, 32)).shape == (0, 32)
