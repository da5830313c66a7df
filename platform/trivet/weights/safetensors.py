"""Reader of safetensors headers.

Ours, because a plan needs the header alone and because the reader is the border where a stranger's file
comes in. Format: 8 bytes of header length, a JSON object {name: {dtype, shape, data_offsets}}, data
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trivet.errors import WeightsError
from trivet.weights.formats import SAFETENSORS_DTYPES, tensor_bytes
from trivet.weights.lfs_pointer import START, refuse_pointer
from trivet.weights.raw_tensor import RawTensor, check_layout

LENGTH_BYTES = 8
# The limit of the safetensors library.
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 16
MAX_SIZE = 1 << 48


def read_header(path: str | Path) -> list[RawTensor]:
    """Read the tensor positions; no tensor data is touched.

    Raises: WeightsError naming the file, and the tensor where there is one.
    """
    file = str(path)
    try:
        with open(path, "rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            refuse_pointer(stream.read(len(START)), file)
            stream.seek(0)
            header_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            if file_bytes < LENGTH_BYTES:
                raise WeightsError(
                    f"{file} has {file_bytes} bytes and is no safetensors file: fetch it again"
                )
            if header_bytes > MAX_HEADER_BYTES:
                raise WeightsError(
                    f"{file} states a header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} is "
                    "believable: the file is damaged or no safetensors file, fetch it again"
                )
            if LENGTH_BYTES + header_bytes > file_bytes:
                raise WeightsError(
                    f"{file} states a header of {header_bytes} bytes and has {file_bytes} in all; "
                    "it is truncated: fetch it again"
                )
            header = stream.read(header_bytes)
    except OSError as error:
        raise WeightsError(
            f"{file} cannot be read: {error.strerror or error}; check path and rights"
        ) from error
    data_start = LENGTH_BYTES + header_bytes
    entries = _parse(header, file)
    tensors = [_tensor(name, entry, file, data_start) for name, entry in entries if name != "__metadata__"]
    check_layout(tensors, file, file_bytes, data_start)
    return tensors


def _parse(header: bytes, file: str) -> list[tuple[str, Any]]:
    """The header's entries, of which no two may have the same name."""
    try:
        parsed = json.loads(header, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise WeightsError(
            f"{file}: the header is no JSON ({str(error)[:100]}): fetch the file again"
        ) from error
    if not isinstance(parsed, _Object):
        raise WeightsError(f"{file}: the header is no JSON object: fetch the file again")
    return parsed.pairs


class _Object(dict[str, Any]):
    """A JSON object that remembers its pairs, so that duplicates show."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs
        if len(self) != len(pairs):
            raise ValueError("a name stands there twice")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE


def _tensor(name: str, entry: Any, file: str, data_start: int) -> RawTensor:
    what = f"{file}: tensor {name[:200]!r}"
    dtype, shape, offsets = (
        (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if isinstance(entry, dict)
        else (None, None, None)
    )
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        raise WeightsError(
            f"{what} has the unknown type {str(dtype)[:40]!r}; known are {', '.join(SAFETENSORS_DTYPES)}: "
            "convert the model to one of these"
        )
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_size, shape)):
        raise WeightsError(
            f"{what} has the shape {str(shape)[:100]}; the header is damaged: fetch the file again"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise WeightsError(
            f"{what} has the offsets {str(offsets)[:100]}; the header is damaged: fetch the file again"
        )
    format_name, size_bytes = SAFETENSORS_DTYPES[dtype], offsets[1] - offsets[0]
    try:
        needed = tensor_bytes(format_name, tuple(shape))
    except ValueError as error:
        raise WeightsError(f"{what} of shape {shape}: {error}: fetch the file again") from error
    if size_bytes != needed:
        raise WeightsError(
            f"{what} of type {dtype} and shape {shape} takes {needed} bytes and its offsets {offsets} give "
            f"{size_bytes}; the header is damaged: fetch the file again"
        )
    return RawTensor(name, tuple(shape), format_name, file, data_start + offsets[0], size_bytes)
