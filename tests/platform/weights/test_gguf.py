"""GGUF headers: against the gguf package, damaged ones, and random damage."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from trivet.errors import ModelFilesError, WeightsError
from trivet.weights.gguf import MAX_ARRAY_LENGTH, read_header


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def field(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def header(fields: list[bytes], tensors: list[bytes], version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields)) + b"".join(fields + tensors)


def tensor(name: bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file with every kind of value and four tensors, made by the package's writer."""
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -6)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -7)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1 / 3)
    writer.add_bool("yes", True)
    writer.add_string("text", "Grüße 世界")
    writer.add_array("ints", [1, 2, 3])
    writer.add_array("texts", ["a", "", "Ω"])
    writer.add_array("reals", [0.25, -1.0])
    writer.add_tensor("f32", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("f16", np.arange(6, dtype=np.float16))
    for name, kind in (("q8_0", gguf.GGMLQuantizationType.Q8_0), ("q4_0", gguf.GGMLQuantizationType.Q4_0)):
        values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_what_the_package_reads(written: Path) -> None:
    theirs = {
        key: value.contents()
        for key, value in gguf.GGUFReader(written).fields.items()
        if not key.startswith("GGUF.")
    }
    assert read_header(written).metadata == theirs


def test_tensors_equal_what_the_package_reads(written: Path) -> None:
    ours = [(t.name, t.shape, t.format, t.offset, t.size_bytes) for t in read_header(written).tensors]
    theirs = [
        (t.name, tuple(map(int, t.shape[::-1])), t.tensor_type.name.lower(), t.data_offset, t.n_bytes)
        for t in gguf.GGUFReader(written).tensors
    ]
    assert ours == theirs


def test_alignment_of_the_file_is_kept(tmp_path: Path) -> None:
    head = header([field(b"general.alignment", 4, struct.pack("<I", 128))], [tensor(b"a", (4,))])
    path = write(tmp_path, head.ljust(128, b"\0") + bytes(16))
    assert read_header(path).tensors[0].offset == 128


def test_last_text_may_be_empty_at_the_end_of_the_file(tmp_path: Path) -> None:
    texts = struct.pack("<IQ", 8, 2) + string(b"x") + string(b"")
    path = write(tmp_path, header([field(b"a", 9, texts)], []))
    assert read_header(path).metadata == {"a": ["x", ""]}


def test_text_that_is_no_utf8_is_read_with_a_replacement(tmp_path: Path) -> None:
    path = write(tmp_path, header([field(b"token", 8, string(b"a\xff"))], []))
    assert read_header(path).metadata == {"token": "a\ufffd"}


DAMAGED = {
    "another magic": (b"GGML" + bytes(60), "is no GGUF file: it starts with b'GGML'"),
    "empty": (b"", "is empty; fetch it again"),
    "version 1": (header([], [], version=1), "GGUF version 1 is not read; versions 2 and 3"),
    "big-endian": (header([], [], version=3 << 24), "it looks big-endian"),
    "absurd number of tensors": (
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        "the number of tensors is 1152",
    ),
    "absurd number of fields": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        "the number of metadata fields",
    ),
    "absurd length of a text": (
        header([field(b"a", 8, struct.pack("<Q", 1 << 62))], []),
        "the header ends inside metadata 'a'",
    ),
    "absurd array": (
        header([field(b"a", 9, struct.pack("<IQ", 8, MAX_ARRAY_LENGTH + 1))], []),
        "the length of metadata 'a' is 4194305; at most 4194304",
    ),
    "absurd arrays together": (
        header(
            [
                field(b"a", 9, struct.pack("<IQ", 1, 1000) + bytes(1000)),
                field(b"b", 9, struct.pack("<IQ", 1, MAX_ARRAY_LENGTH - 999)),
            ],
            [],
        ),
        "the length of metadata 'b' is 4193305; at most 4193304",
    ),
    "array longer than the file": (
        header([field(b"a", 9, struct.pack("<IQ", 10, MAX_ARRAY_LENGTH))], []),
        "the header ends inside metadata 'a'",
    ),
    "texts longer than the file": (
        header([field(b"a", 9, struct.pack("<IQ", 8, 3) + string(b"x"))], []),
        "the header ends inside metadata 'a'",
    ),
    "text of an array longer than the file": (
        header([field(b"a", 9, struct.pack("<IQQ", 8, 1, 1 << 62))], []),
        "the header ends inside metadata 'a'",
    ),
    "unknown value type": (
        header([field(b"a", 13, bytes(8))], []),
        "metadata 'a' has the unknown value type 13",
    ),
    "arrays without end": (
        header([field(b"a", 9, struct.pack("<IQ", 9, 1) * 50)], []),
        "metadata 'a' is an array of the unknown value type 9",
    ),
    "long key": (header([field(b"k" * 257, 7, b"\1")], []), "metadata key 0 is longer than 256 bytes"),
    "key twice": (header([field(b"a", 7, b"\1")] * 2, []), "metadata key 'a' stands there twice"),
    "alignment no power of two": (
        header([field(b"general.alignment", 4, struct.pack("<I", 24))], []),
        "general.alignment is 24",
    ),
    "alignment a text": (
        header([field(b"general.alignment", 8, string(b"x"))], []),
        "general.alignment is x",
    ),
}
DAMAGED_TENSORS = {
    "tensor past the end": ([tensor(b"a", (1024,))], "tensor 'a' ends at byte .* it is truncated"),
    "absurd shape": ([tensor(b"a", (1 << 63, 1 << 63))], "tensor 'a' ends at byte"),
    "unknown type": ([tensor(b"a", (32,), kind=99)], "tensor 'a' has the unknown type 99; known are f32"),
    "too many axes": ([tensor(b"a", (1, 1, 1, 1, 1))], "tensor 'a' has 5 axes"),
    "offset that is not aligned": (
        [tensor(b"a", (1,), offset=4)],
        "offset 4, no multiple of the alignment 32",
    ),
    "row inside a block": ([tensor(b"a", (48,), kind=2)], "tensor 'a' of shape .48.: a row of 48 numbers"),
    "overlap": ([tensor(b"a", (12,)), tensor(b"b", (4,), offset=32)], "tensors 'a' and 'b' overlap"),
    "name twice": ([tensor(b"a", (4,)), tensor(b"a", (4,), offset=32)], "two tensors have the same name"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_header_is_an_error_that_names_the_place(case: str, tmp_path: Path) -> None:
    content, message = DAMAGED[case]
    with pytest.raises(ModelFilesError, match=message) as caught:
        read_header(write(tmp_path, content))
    assert str(tmp_path / "model.gguf") in str(caught.value)


@pytest.mark.parametrize("case", DAMAGED_TENSORS)
def test_damaged_tensor_is_a_weights_error_that_names_it(case: str, tmp_path: Path) -> None:
    tensors, message = DAMAGED_TENSORS[case]
    with pytest.raises(WeightsError, match=message):
        read_header(write(tmp_path, header([], tensors).ljust(512, b"\0")))


def test_missing_file_and_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="No such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelFilesError, match="Is a directory"):
        read_header(tmp_path)


def test_huge_sparse_file_full_of_zeros_is_refused_soon(tmp_path: Path) -> None:
    path = write(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 16))
    with open(path, "r+b") as stream:
        stream.truncate(1 << 40)
    started = time.monotonic()
    with pytest.raises(ModelFilesError, match="metadata key '' stands there twice"):
        read_header(path)
    assert time.monotonic() - started < 10


def test_every_truncation_is_an_error(written: Path) -> None:
    content = written.read_bytes()
    needed = max(tensor.offset + tensor.size_bytes for tensor in read_header(written).tensors)
    for length in range(needed):
        written.write_bytes(content[:length])
        with pytest.raises(ModelFilesError):
            read_header(written)


def test_random_damage_gives_a_header_or_an_error_of_ours(written: Path) -> None:
    content = written.read_bytes()
    chance = random.Random(11)
    num_refused = 0
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(700)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        written.write_bytes(damaged)
        try:
            read_header(written)
        except ModelFilesError:
            num_refused += 1
    assert 100 < num_refused < 2000
