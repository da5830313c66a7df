"""The table of formats against the tables of the gguf package and the safetensors library."""

from __future__ import annotations

import gguf
import pytest

from trivet.weights.formats import FORMATS, GGML_TYPES, SAFETENSORS_DTYPES, row_bytes, tensor_bytes


def test_every_type_of_the_gguf_package_has_its_number_and_size() -> None:
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        name = GGML_TYPES[int(kind)]
        assert name == kind.name.lower()
        assert (FORMATS[name].block_size, FORMATS[name].block_bytes) == (block_size, block_bytes)


@pytest.mark.parametrize(
    ("dtype", "size"), [("F64", 8), ("BF16", 2), ("I8", 1), ("BOOL", 1), ("F8_E4M3", 1), ("C64", 8)]
)
def test_safetensors_dtype_has_its_size(dtype: str, size: int) -> None:
    assert tensor_bytes(SAFETENSORS_DTYPES[dtype], (3, 5)) == 15 * size


def test_six_bit_floats_are_packed_without_gaps() -> None:
    assert tensor_bytes("f6_e2m3", (2, 8)) == 12


def test_scalar_takes_one_number() -> None:
    assert tensor_bytes("f32", ()) == 4


def test_empty_tensor_takes_no_bytes() -> None:
    assert tensor_bytes("q4_0", (0, 32)) == 0


def test_row_that_ends_inside_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"48 numbers is no multiple of q4_0's 32"):
        row_bytes("q4_0", 48)
