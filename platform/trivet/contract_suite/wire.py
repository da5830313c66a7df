"""A step's arguments as one buffer and back: rule 7, executed.

A tensor-parallel runner sends `Batch` and `Sampling` to its ranks like this. Whatever is neither an
array nor a plain value is refused.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

import numpy as np

from trivet.contract import Batch, BlockCopy, Sampling

T = TypeVar("T", Batch, Sampling)
ALIGNMENT = 64  # bytes: a cache line, and enough for every vector load
KINDS: dict[str, type] = {kind.__name__: kind for kind in (Batch, Sampling, BlockCopy)}


def round_trip(value: T) -> T:
    """The value as the other side of a wire would see it.

    Raises: TypeError naming the field that holds something else than arrays and plain values.
    """
    restored = restore(bytearray(flatten(value)))
    assert isinstance(restored, type(value))
    return restored


def flatten(value: Batch | Sampling) -> bytes:
    """An 8-byte header length, a JSON header that places each array, then the arrays' bytes.

    Raises: TypeError naming the field that holds something else than arrays and plain values.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    header = json.dumps(_describe(value, type(value).__name__, arrays)).encode()
    body = b"".join(array.tobytes().ljust(_padded(array.nbytes), b"\0") for array in arrays)
    start = _padded(8 + len(header))
    return (len(header).to_bytes(8, "little") + header).ljust(start, b"\0") + body


def restore(buffer: bytearray) -> Any:
    """What `flatten` was given; its arrays are views of the buffer."""
    size = int.from_bytes(buffer[:8], "little")
    cursor = _Cursor(buffer, _padded(8 + size))
    return cursor.build(json.loads(buffer[8 : 8 + size]))


def _describe(value: object, where: str, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError(f"{where} is an array of Python objects")
        arrays.append(value)
        return {"array": value.dtype.str, "shape": value.shape}
    if dataclasses.is_dataclass(value) and type(value).__name__ in KINDS:
        names = [f.name for f in dataclasses.fields(value)]
        fields = {name: _describe(getattr(value, name), f"{where}.{name}", arrays) for name in names}
        return {"kind": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_describe(item, f"{where}[{i}]", arrays) for i, item in enumerate(value)]}
    if value is None or type(value) in (bool, int, float, str):
        return {"plain": value}
    raise TypeError(f"{where} holds a {type(value).__name__}; only arrays and plain values may cross")


class _Cursor:
    def __init__(self, buffer: bytearray, offset: int) -> None:
        self.buffer = buffer
        self.offset = offset

    def build(self, node: dict[str, Any]) -> Any:
        if "array" in node:
            return self._array(np.dtype(node["array"]), node["shape"])
        if "kind" in node:
            return KINDS[node["kind"]](**{name: self.build(value) for name, value in node["fields"].items()})
        if "tuple" in node:
            return tuple(self.build(item) for item in node["tuple"])
        return node["plain"]

    def _array(self, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape))
        view = np.frombuffer(self.buffer, dtype, count, self.offset).reshape(shape)
        self.offset += _padded(count * dtype.itemsize)
        return view


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
