"""safetensors headers: against the library, damaged ones, and random damage."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from trivet.errors import WeightsError
from trivet.weights.safetensors import MAX_HEADER_BYTES, read_header

TENSORS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(6, dtype=np.float16),
    "scalar": np.array(2.5, np.float64),
    "ids": np.arange(4, dtype=np.int64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 8), np.uint8),
}


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(tmp_path: Path, header: bytes | dict[str, Any], data: bytes = bytes(64)) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.safetensors"
    save_file(TENSORS, path, metadata={"format": "np"})
    return path


def test_names_shapes_and_bytes_are_those_that_the_library_wrote(saved: Path) -> None:
    content = saved.read_bytes()
    found = {tensor.name: tensor for tensor in read_header(saved)}
    assert found.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        tensor = found[name]
        assert tensor.shape == array.shape
        assert content[tensor.offset : tensor.offset + tensor.size_bytes] == array.tobytes()


def test_formats_are_the_library_dtypes_in_lower_case(saved: Path) -> None:
    with safe_open(saved, "np") as library:
        theirs = {name: library.get_slice(name).get_dtype().lower() for name in library.keys()}  # noqa: SIM118
    assert {tensor.name: tensor.format for tensor in read_header(saved)} == theirs


def test_gaps_between_tensors_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": entry(), "b": entry(offsets=(16, 24))})
    assert [tensor.name for tensor in read_header(path)] == ["a", "b"]


DAMAGED = {
    "no JSON": (b"{", "the header is no JSON"),
    "no object": (b"[1]", "the header is no JSON object"),
    "deep nesting": (b"[" * 100_000, "the header is no JSON"),
    "an endless number": (b'{"a": ' + b"9" * 10_000 + b"}", "the header is no JSON"),
    "name twice": (b'{"a": 1, "a": 2}', "a name stands there twice"),
    "entry no object": ({"a": 5}, "tensor 'a' has the unknown type 'None'"),
    "unknown type": ({"a": entry("F3")}, "tensor 'a' has the unknown type 'F3'; known are F64"),
    "type no text": ({"a": entry(["F32"])}, "tensor 'a' has the unknown type"),
    "negative axis": ({"a": entry(shape=(-2,))}, r"tensor 'a' has the shape \[-2\]"),
    "axis true": ({"a": entry(shape=(True,))}, r"tensor 'a' has the shape \[True\]"),
    "many axes": ({"a": entry(shape=(1,) * 99)}, "tensor 'a' has the shape"),
    "three offsets": ({"a": entry(offsets=(0, 8, 16))}, r"tensor 'a' has the offsets \[0, 8, 16\]"),
    "offsets of text": ({"a": entry(offsets="08")}, "tensor 'a' has the offsets 08"),
    "offsets backwards": ({"a": entry(offsets=(8, 0))}, r"takes 8 bytes and its offsets \[8, 0\] give -8"),
    "size of another shape": ({"a": entry(shape=(3,))}, r"takes 12 bytes and its offsets \[0, 8\] give 8"),
    "past the end": ({"a": entry(offsets=(60, 68))}, "tensor 'a' ends at byte .* truncated"),
    "overlap": ({"a": entry(), "b": entry(offsets=(4, 12))}, "tensors 'a' and 'b' overlap"),
    "half a block": ({"a": entry("F6_E2M3", (3,), (0, 2))}, "a row of 3 numbers is no multiple"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_header_is_an_error_that_names_the_place(case: str, tmp_path: Path) -> None:
    header, message = DAMAGED[case]
    with pytest.raises(WeightsError, match=message) as caught:
        read_header(write(tmp_path, header))
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [1 << 60, MAX_HEADER_BYTES + 1])
def test_absurd_header_length_is_refused_unread(length: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(WeightsError, match=f"states a header of {length} bytes; at most"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has 0 bytes"), (b"\xff\0\0\0\0\0\0\0{", "truncated")]
)
def test_file_that_ends_early_is_truncated(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_header(path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="No such file"):
        read_header(tmp_path / "none.safetensors")


def test_every_truncation_is_an_error(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        with pytest.raises(WeightsError):
            read_header(saved)


def test_random_damage_gives_tensors_or_an_error_of_ours(saved: Path) -> None:
    content = saved.read_bytes()
    chance = random.Random(5)
    num_refused = 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(500)] = chance.choice(b'0123456789{}[]",:-e\xff' + bytes([0]))
        saved.write_bytes(damaged)
        try:
            read_header(saved)
        except WeightsError:
            num_refused += 1
    assert 100 < num_refused < 2000
