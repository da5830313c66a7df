"""The slots of adapters (LoRA) as the native kernels read them; `kernels/adapters.h` says how they compute.

All memory is taken at the start, that of a step with the other buffers (`native_plan.py`): to load an adapter
writes into its slot, and its ranks last.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivet.errors import WeightsError
from trivet.models.spec import MLP, ModelSpec
from trivet.runners.adapter_memory import AdaptedPart, adapted_parts, check_adapter
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader
from trivet_cpu import native_plan
from trivet_cpu.native_library import ADAPTED_PARTS, AdaptedMatrix, AdapterSpace, Kind
from trivet_cpu.native_plan import GROUP, NativeShape, padded
from trivet_cpu.native_weights import Arena

if TYPE_CHECKING:
    from collections.abc import Mapping

INFINITE_BFLOAT = 0x7F80  # the exponent's bits


class NativeAdapters:
    """All slots of one model, empty at first; whoever writes to them has waited for the steps before."""

    def __init__(self, spec: ModelSpec, native: NativeShape) -> None:
        """Raises: MemoryError."""
        self._spec, self._slots = spec, native.shape.adapters
        self._is_f32 = native.shape.dtype == "f32"
        num_slots, max_rank = self._slots.num_slots, self._slots.max_rank
        self._parts = {part.stem: part for part in adapted_parts(spec, self._slots)}
        self._arena = Arena(native_plan.adapter_bytes(spec, native))
        self._ranks = np.zeros((len(self._parts), num_slots + 1), np.int32)
        self._a: dict[str, NDArray[np.generic]] = {}  # [slots, max_rank, columns]
        self._b: dict[str, NDArray[np.generic]] = {}  # [slots, rows / 32, max_rank, 32]
        for stem, part in self._parts.items():
            self._a[stem] = self._take((num_slots, max_rank, padded(part.num_columns)))
            self._b[stem] = self._take((num_slots, padded(part.num_rows) // GROUP, max_rank, GROUP))
        self.layers = [self._layer(index) for index in range(spec.num_layers)]

    def _take(self, shape: tuple[int, ...]) -> NDArray[np.generic]:
        dtype = np.float32 if self._is_f32 else np.uint16
        values: NDArray[np.generic] = self._arena.array(shape, np.dtype(dtype))
        return values

    def _layer(self, index: int) -> ctypes.Array[AdaptedMatrix]:
        """In the order of `ADAPTED_PARTS`, with nothing where the slots have no room."""
        mlp = self._spec.layer(index).mlp
        assert isinstance(mlp, MLP)
        stems = list(self._parts)
        matrices = (AdaptedMatrix * len(ADAPTED_PARTS))()
        for place, name in enumerate(ADAPTED_PARTS):
            # The kernels know the only matrix of a layer without gate as its gate.
            part = name if mlp.gated else {"gate": "up", "up": "gate"}.get(name, name)
            stem = f"layers.{index}.{part}"
            if stem in self._parts:
                a, b = self._a[stem], self._b[stem]
                matrices[place] = AdaptedMatrix(
                    a=a.ctypes.data,
                    b=b.ctypes.data,
                    ranks=self._ranks[stems.index(stem)].ctypes.data,
                    columns=a.shape[2],
                    rows=b.shape[1] * GROUP,
                )
        return matrices

    @property
    def size_bytes(self) -> int:
        return self._arena.size_bytes

    def space(self, addresses: Mapping[str, int], num_tokens: int) -> AdapterSpace:
        """Of the steps, in buffers by name."""
        return AdapterSpace(
            lows=addresses["adapters.lows"],
            books=addresses["adapters.books"],
            max_tokens=num_tokens,
            max_rank=self._slots.max_rank,
            kind=Kind.F32 if self._is_f32 else Kind.BF16,
        )

    def load(self, slot: int, weights: WeightIndex) -> None:
        """As `contract.Runner.load_adapter`."""
        check_adapter(self._slots, slot, weights)
        self.unload(slot)
        ranks = np.zeros(len(self._parts), np.int32)
        with TensorReader(weights) as reader:
            for place, (stem, part) in enumerate(self._parts.items()):
                if f"{stem}.lora_a" in weights:
                    ranks[place] = self._put(slot, part, reader)
        self._ranks[:, slot] = ranks  # only now: a part of an adapter is none

    def _put(self, slot: int, part: AdaptedPart, reader: TensorReader) -> int:
        """The rank of one matrix, once its values stand in the slot."""
        a, b = (self._values(reader, f"{part.stem}.{name}") for name in ("lora_a", "lora_b"))
        rank = len(a)
        self._a[part.stem][slot - 1, :rank, : part.num_columns] = a
        columns = np.zeros((rank, padded(part.num_rows)), b.dtype)
        columns[:, : part.num_rows] = b.T
        self._b[part.stem][slot - 1, :, :rank] = columns.reshape(rank, -1, GROUP).transpose(1, 0, 2)
        return rank

    def _values(self, reader: TensorReader, name: str) -> NDArray[np.generic]:
        """As they are stored. Raises: WeightsError where one is not finite."""
        values: NDArray[np.generic] = reader.float32(name)
        is_finite = bool(np.isfinite(values).all())
        if is_finite and not self._is_f32:
            values = _bfloats(values)
            is_finite = not ((values & np.uint16(INFINITE_BFLOAT)) == INFINITE_BFLOAT).any()
        if not is_finite:
            dtype = "float32" if self._is_f32 else "bfloat16"
            file = reader.index[name].file
            raise WeightsError(f"{file}: tensor {name!r} holds values that are not finite in {dtype}")
        return values

    def unload(self, slot: int) -> None:
        """A rank of 0 adds nothing; there may be no such slot."""
        self._ranks[:, slot] = 0


def _bfloats(values: NDArray[np.generic]) -> NDArray[np.uint16]:
    """Finite float32 to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
