"""Values of the contract in MessagePack, for the ranks of a runner: a step is one buffer (contract rule 7).

Only arrays, plain values and the classes listed in KINDS cross, so what is read can start nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec
import numpy as np

from trivet.contract import (
    AdapterSlots,
    Batch,
    BlockCopy,
    DeviceInfo,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    RunnerConfig,
    Sampling,
)
from trivet.models.spec import MLP, Attention, Latent, Layer, ModelSpec, MoE, Norm, Rope
from trivet.runners.slices import Rank
from trivet.weights.index import TensorInfo, WeightIndex

T = TypeVar("T", Batch, Sampling)
KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Batch, BlockCopy, Sampling),
        *(AdapterSlots, DeviceInfo, KVCacheSpec, KVGroup, KVKind, MemoryPart, MemoryPlan, RunnerConfig, Rank),
        *(Attention, Latent, Layer, MLP, ModelSpec, MoE, Norm, Rope),
        *(TensorInfo, WeightIndex),
    )
}
# Codes of MessagePack's extension types; each holds a MessagePack array.
ARRAY, KIND, SET = 1, 2, 3


def round_trip(value: T) -> T:
    """The value as the other side of a wire would see it.

    Raises: TypeError naming the field that holds something else than arrays and plain values.
    """
    restored = restore(flatten(value))
    assert isinstance(restored, type(value))
    return restored


def flatten(value: object) -> bytes:
    """Raises: TypeError naming the field that holds something else than arrays, plain values and KINDS."""
    return msgspec.msgpack.encode(_described(value, type(value).__name__))


def restore(buffer: bytes) -> Any:
    """What `flatten` was given; its arrays are copies, so that they can be written.

    Raises: msgspec.DecodeError, ValueError of bytes that `flatten` did not make.
    """
    return _built(msgspec.msgpack.decode(buffer, ext_hook=_extended))


def _described(value: object, where: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple):
        return [_described(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_plain_key(key, where): _described(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError(f"{where} is an array of Python objects")
        return _extension(ARRAY, [value.dtype.str, value.shape, value.tobytes()])
    if isinstance(value, frozenset):
        return _extension(SET, [_described(item, where) for item in sorted(value)])
    name = type(value).__name__
    if KINDS.get(name) is not type(value):
        raise TypeError(f"{where} holds a {name}; only arrays and plain values may cross")
    if isinstance(value, Enum):
        return _extension(KIND, [name, value.value])
    assert dataclasses.is_dataclass(value)
    fields = (field.name for field in dataclasses.fields(value))
    return _extension(KIND, [name, *(_described(getattr(value, f), f"{where}.{f}") for f in fields)])


def _plain_key(key: object, where: str) -> str:
    if type(key) is not str:
        raise TypeError(f"{where} has the key {key!r}; only names may cross")
    return key


def _extension(code: int, content: list[Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))


def _extended(code: int, data: memoryview) -> Any:
    content = msgspec.msgpack.decode(data, ext_hook=_extended)
    if code == ARRAY:
        dtype, shape, stored = content
        return np.frombuffer(stored, np.dtype(dtype)).reshape(shape).copy()
    if code == SET:
        return frozenset(content)
    if code != KIND or content[0] not in KINDS:
        raise ValueError(f"extension {code} with {str(content)[:80]} is none that a rank sends")
    return KINDS[content[0]](*(_built(item) for item in content[1:]))


def _built(value: Any) -> Any:
    """MessagePack knows one kind of sequence; here it is a tuple."""
    if isinstance(value, list):
        return tuple(_built(item) for item in value)
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return value
