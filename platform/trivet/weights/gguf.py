"""Reader of GGUF headers: metadata and where the tensors stand.

Ours, because the `gguf` package's reader makes a NumPy view of every token of the vocabulary and takes
two seconds for what takes 50 ms here, and because it trusts the counts that a file states. Format:
ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trivet.errors import ModelFilesError, WeightsError
from trivet.weights.formats import GGML_TYPES, tensor_bytes
from trivet.weights.lfs_pointer import START, refuse_pointer
from trivet.weights.raw_tensor import RawTensor, check_layout

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
STRING, ARRAY = 8, 9
SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = SCALARS[4], SCALARS[10]

# Far above what models have (a vocabulary of 262,144, merges of 600,000, a header of 20 MB) and low enough
# that a hostile file, sparse or not, can cost neither minutes nor gigabytes.
MAX_HEADER_BYTES = 128 << 20
MAX_ARRAY_LENGTH = 4 << 20  # of all arrays together: a vocabulary, its types and scores, its merges
MAX_FIELDS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_DIMS = 4
MAX_NAME_BYTES = 256  # real names and keys stay under 64

MetadataValue: TypeAlias = "str | int | float | bool | list[MetadataValue]"


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What stands before the tensor data."""

    metadata: dict[str, MetadataValue]
    tensors: list[RawTensor]


class _Cursor:
    """Reads little-endian values from the mapped file, never past its end."""

    def __init__(self, data: mmap.mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.position = 0
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.num_items = 0  # of the arrays so far

    def damaged(self, what: str) -> ModelFilesError:
        return ModelFilesError(f"{self.file}: {what}; the file is damaged: fetch it again")

    def take(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they start."""
        start = self.position
        if size > self.end - start:
            if self.end < len(self.data):
                raise self.damaged(f"the header is longer than {MAX_HEADER_BYTES} bytes (at {what})")
            raise ModelFilesError(
                f"{self.file}: the header ends inside {what} at byte {len(self.data)}; "
                "the file is truncated: fetch it again"
            )
        self.position = start + size
        return start

    def scalar(self, kind: struct.Struct, what: str) -> int | float | bool:
        value: int | float | bool = kind.unpack_from(self.data, self.take(kind.size, what))[0]
        return value

    def count(self, what: str, limit: int) -> int:
        value = int(self.scalar(_U64, what))
        if value > limit:
            raise self.damaged(f"{what} is {value}; at most {limit} is believable")
        return value

    def u32(self, what: str) -> int:
        return int(self.scalar(_U32, what))

    def string(self, what: str) -> str:
        size = int(self.scalar(_U64, what))
        start = self.take(size, what)
        # A token of a foreign vocabulary may be no UTF-8; one odd token is no reason to refuse a model.
        return self.data[start : start + size].decode("utf-8", errors="replace")

    def name(self, what: str) -> str:
        """A key or a tensor's name, short enough for an error message."""
        start, name = self.position, self.string(what)
        if self.position - start - _U64.size > MAX_NAME_BYTES:
            raise self.damaged(f"{what} is longer than {MAX_NAME_BYTES} bytes")
        return name

    def value(self, kind: int, what: str) -> MetadataValue:
        if kind in SCALARS:
            return self.scalar(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        raise self.damaged(f"{what} has the unknown value type {kind}")

    def array(self, what: str) -> list[MetadataValue]:
        """Arrays of arrays are refused, as llama.cpp does: no model has any."""
        kind = self.u32(what)
        length = self.count(f"the length of {what}", MAX_ARRAY_LENGTH - self.num_items)
        self.num_items += length
        if kind == STRING:
            return [*self.strings(length, what)]
        if kind not in SCALARS:
            raise self.damaged(f"{what} is an array of the unknown value type {kind}")
        start = self.take(SCALARS[kind].size * length, what)
        code = SCALARS[kind].format[1]
        return list(struct.unpack_from(f"<{length}{code}", self.data, start))

    def strings(self, length: int, what: str) -> list[str]:
        """A vocabulary: 150,000 texts, so a loop without calls into this class."""
        data, end, position, found = self.data, self.end, self.position, []
        unpack, size_bytes = _U64.unpack_from, _U64.size
        for _ in range(length):
            start = position + size_bytes
            if start > end:
                break
            position = start + unpack(data, position)[0]
            if position > end:
                break
            found.append(data[start:position].decode("utf-8", "replace"))
        if len(found) < length:
            self.take(self.end, what)  # says in what way the header ends too soon
        self.position = position
        return found


def read_header(path: str | Path) -> GGUFHeader:
    """Read metadata and tensor positions; no tensor data is touched.

    Raises: ModelFilesError for a file that is no GGUF or whose header is damaged; WeightsError, naming the
    tensor, for tensors that are out of the file, overlap, or are of an unknown type.
    """
    file = str(path)
    try:
        with open(path, "rb") as stream:
            refuse_pointer(start := stream.read(len(START)), file)
            start = start[: len(MAGIC)]
            if not start:
                raise ModelFilesError(f"{file} is empty; fetch it again")
            if start != MAGIC:
                raise ModelFilesError(
                    f"{file} is no GGUF file: it starts with {start!r} in place of {MAGIC!r}; "
                    "give a .gguf file or a folder with config.json"
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(_Cursor(data, file))
    except OSError as error:
        raise ModelFilesError(
            f"{file} cannot be read: {error.strerror or error}; check path and rights"
        ) from error


def _read(cursor: _Cursor) -> GGUFHeader:
    cursor.take(len(MAGIC), "the magic")
    version = cursor.u32("the version")
    if version not in (2, 3):
        big_endian = "; it looks big-endian, which is not read" if version and version & 0xFFFF == 0 else ""
        raise ModelFilesError(
            f"{cursor.file}: GGUF version {version} is not read{big_endian}; "
            "versions 2 and 3 are: convert it again with a current llama.cpp"
        )
    num_tensors = cursor.count("the number of tensors", MAX_TENSORS)
    num_fields = cursor.count("the number of metadata fields", MAX_FIELDS)
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_fields):
        key = cursor.name(f"metadata key {index}")
        if key in metadata:
            raise cursor.damaged(f"metadata key {key!r} stands there twice")
        kind = cursor.u32(f"the type of {key!r}")
        metadata[key] = cursor.value(kind, f"metadata {key!r}")
    return GGUFHeader(metadata, _read_tensors(cursor, num_tensors, _alignment(metadata, cursor)))


def _alignment(metadata: dict[str, MetadataValue], cursor: _Cursor) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or not 0 < value <= 1 << 20 or value & (value - 1):
        raise cursor.damaged(f"general.alignment is {str(value)[:40]} and must be a power of two")
    return value


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> list[RawTensor]:
    relative = [_read_tensor(cursor, index, alignment) for index in range(num_tensors)]
    # Offsets count from the first aligned byte behind the header, which is known only now.
    data_start = -(-cursor.position // alignment) * alignment
    tensors = [
        RawTensor(t.name, t.shape, t.format, t.file, t.offset + data_start, t.size_bytes) for t in relative
    ]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise WeightsError(
            f"{cursor.file}: two tensors have the same name; the file is damaged: fetch it again"
        )
    check_layout(tensors, cursor.file, len(cursor.data), data_start)
    return tensors


def _read_tensor(cursor: _Cursor, index: int, alignment: int) -> RawTensor:
    name = cursor.name(f"the name of tensor {index}")
    what = f"tensor {name!r}"
    num_dims = cursor.u32(what)
    if num_dims > MAX_DIMS:
        raise WeightsError(
            f"{cursor.file}: {what} has {num_dims} axes and GGUF allows {MAX_DIMS}: fetch it again"
        )
    # GGUF lists the contiguous axis first.
    shape = tuple(int(cursor.scalar(_U64, what)) for _ in range(num_dims))[::-1]
    number = cursor.u32(what)
    offset = int(cursor.scalar(_U64, what))
    if number not in GGML_TYPES:
        raise WeightsError(
            f"{cursor.file}: {what} has the unknown type {number}; known are "
            f"{', '.join(GGML_TYPES.values())}: convert the model to one of these"
        )
    format_name = GGML_TYPES[number]
    if offset % alignment:
        raise WeightsError(
            f"{cursor.file}: {what} stands at offset {offset}, no multiple of the alignment {alignment}; "
            "the file is damaged: fetch it again"
        )
    try:
        size_bytes = tensor_bytes(format_name, shape)
    except ValueError as error:
        raise WeightsError(
            f"{cursor.file}: {what} of shape {list(shape)}: {error}: convert it again"
        ) from error
    return RawTensor(name, shape, format_name, cursor.file, offset, size_bytes)
