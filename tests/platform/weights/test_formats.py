"""The table of formats against the tables of the gguf package and the safetensors library."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import pytest
from safetensors import SafetensorError, safe_open

from trivet.weights.formats import FORMATS, GGML_TYPES, SAFETENSORS_DTYPES, row_bytes, tensor_bytes


def test_every_type_of_the_gguf_package_has_its_number_and_size() -> None:
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        name = GGML_TYPES[int(kind)]
        assert name == kind.name.lower()
        assert (FORMATS[name].block_size, FORMATS[name].block_bytes) == (block_size, block_bytes)


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES)
def test_safetensors_library_agrees_with_the_size(dtype: str, tmp_path: Path) -> None:
    size = tensor_bytes(SAFETENSORS_DTYPES[dtype], (3, 8))
    header = json.dumps({"a": {"dtype": dtype, "shape": [3, 8], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "one.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with safe_open(path, "np") as library:
        assert library.get_slice("a").get_dtype() == dtype


def test_every_dtype_of_the_safetensors_library_is_known(tmp_path: Path) -> None:
    path = tmp_path / "unknown.safetensors"
    header = json.dumps({"a": {"dtype": "?", "shape": [], "data_offsets": [0, 0]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(SafetensorError) as caught, safe_open(path, "np"):
        pass  # the library names what it knows
    assert {*re.findall(r"`(\w+)`", str(caught.value))} <= {*SAFETENSORS_DTYPES}


def test_six_bit_floats_are_packed_without_gaps() -> None:
    assert tensor_bytes("f6_e2m3", (2, 8)) == 12


def test_scalar_takes_one_number() -> None:
    assert tensor_bytes("f32", ()) == 4


def test_empty_tensor_takes_no_bytes() -> None:
    assert tensor_bytes("q4_0", (0, 32)) == 0


def test_row_that_ends_inside_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"48 numbers is no multiple of q4_0's 32"):
        row_bytes("q4_0", 48)
