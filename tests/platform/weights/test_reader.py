"""Tensors through the mapped files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from trivet.errors import WeightsError
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.reader import TensorReader

ROWS = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
Q8_0 = gguf.quants.quantize(ROWS, gguf.GGMLQuantizationType.Q8_0)
BIAS = np.arange(8, dtype=np.float32)
LEAD = b"header"  # so that nothing is aligned


@pytest.fixture
def index(tmp_path: Path) -> WeightIndex:
    """q8 rows, the same as heads that GGUF interleaves, a bias, an expert stack."""
    path = tmp_path / "weights.bin"
    path.write_bytes(LEAD + Q8_0.tobytes() + BIAS.tobytes())
    at, bias_at = len(LEAD), len(LEAD) + Q8_0.nbytes
    return WeightIndex(
        (
            TensorInfo("plain", (8, 64), "q8_0", str(path), at, Q8_0.nbytes),
            TensorInfo("heads", (8, 64), "q8_0", str(path), at, Q8_0.nbytes, unpermute_heads=2),
            TensorInfo("stack", (2, 4, 64), "q8_0", str(path), at, Q8_0.nbytes),
            TensorInfo("one_row", (1, 64), "q8_0", str(path), at, 68),
            TensorInfo("bias", (8,), "f32", str(path), bias_at, BIAS.nbytes, unpermute_heads=2),
            TensorInfo("codes", (4,), "i8", str(path), at, 4),
        )
    )


# Rows 0..3 are head 0 as [half of the dimension, pair]: a pair's members stand side by side.
CANONICAL = [0, 2, 1, 3, 4, 6, 5, 7]


def test_raw_rows_are_the_file_bytes_and_not_copied(index: WeightIndex) -> None:
    with TensorReader(index) as reader:
        raw = reader.raw("plain")
        np.testing.assert_array_equal(raw, Q8_0)
        assert np.shares_memory(raw, reader.raw("heads"))
        assert not raw.flags.writeable


@pytest.mark.parametrize(("name", "shape"), [("stack", (8, 68)), ("one_row", (1, 68)), ("bias", (32,))])
def test_raw_has_one_row_of_bytes_for_each_row(name: str, shape: tuple[int, ...], index: WeightIndex) -> None:
    with TensorReader(index) as reader:
        assert reader.raw(name).shape == shape


def test_float32_has_the_tensor_shape(index: WeightIndex) -> None:
    with TensorReader(index) as reader:
        expected = gguf.quants.dequantize(Q8_0, gguf.GGMLQuantizationType.Q8_0)
        np.testing.assert_array_equal(reader.float32("stack"), expected.reshape(2, 4, 64))


def test_interleaved_heads_are_put_back_in_halves(index: WeightIndex) -> None:
    with TensorReader(index) as reader:
        np.testing.assert_array_equal(reader.float32("heads"), reader.float32("plain")[CANONICAL])
        np.testing.assert_array_equal(reader.rows("heads"), Q8_0[CANONICAL])
        np.testing.assert_array_equal(reader.float32("bias"), BIAS[CANONICAL])


def test_rows_that_stand_right_are_not_copied(index: WeightIndex) -> None:
    with TensorReader(index) as reader:
        assert np.shares_memory(reader.rows("plain"), reader.raw("plain"))


def test_arrays_outlive_the_reader(index: WeightIndex) -> None:
    reader = TensorReader(index)
    raw = reader.raw("plain")
    reader.close()
    reader.close()
    np.testing.assert_array_equal(raw, Q8_0)


def test_unknown_tensor_is_named(index: WeightIndex) -> None:
    with TensorReader(index) as reader, pytest.raises(WeightsError, match="tensor 'none' is in none of"):
        reader.raw("none")


def test_format_without_unpacker_names_file_and_tensor(index: WeightIndex) -> None:
    with (
        TensorReader(index) as reader,
        pytest.raises(WeightsError, match=r"weights.bin: tensor 'codes': numbers of type 'i8' cannot"),
    ):
        reader.float32("codes")


@pytest.mark.parametrize(("content", "message"), [(b"short", "the file now has 5"), (b"", "is empty")])
def test_file_that_was_cut_since_names_file_and_tensor(
    content: bytes, message: str, index: WeightIndex
) -> None:
    Path(index["plain"].file).write_bytes(content)
    with (
        TensorReader(index) as reader,
        pytest.raises(WeightsError, match=f"'plain'.*{message}|{message}.*'plain'"),
    ):
        reader.float32("plain")


def test_file_that_is_gone_names_file_and_tensor(index: WeightIndex) -> None:
    Path(index["plain"].file).unlink()
    with (
        TensorReader(index) as reader,
        pytest.raises(WeightsError, match=r"weights.bin: tensor 'plain' cannot"),
    ):
        reader.float32("plain")
