"""A model's weights, packed for the kernels, in one piece of memory of exactly the planned size."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, ModelSpec, Norm, Rope
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader
from trivet_cpu.native_library import Layer, Pack, SourceFormat, Weight
from trivet_cpu.native_plan import (
    ACTIVATIONS,
    AS_STORED,
    STORED_KINDS,
    NativeShape,
    packed_bytes,
    padded,
    weights_bytes,
)

ALIGNMENT = 64  # bytes: a cache line, and what the kernels' loads like
MIN_SHARED_BYTES = 64 << 20  # less is touched by one thread


class Arena:
    """Page-aligned memory from the kernel, given out piece by piece and given back as a whole."""

    def __init__(self, size_bytes: int) -> None:
        """Touches every page. Raises: MemoryError."""
        self.size_bytes = size_bytes
        try:
            # Private: shared memory gets no huge pages.
            self._map = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size_bytes} bytes: {error.strerror}") from error
        # A decode step walks through all of it: 4 KiB pages would miss the TLB at every second line.
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._touch()
        self._taken: list[tuple[int, int]] = []  # offset and size of each piece
        self._used = 0

    def _touch(self) -> None:
        """Write to every page, in all threads that may run: the kernel clears pages for each by itself.

        1 GiB took 50 to 80 ms instead of 90 to 310 on two Zen 4 cores; MADV_POPULATE_WRITE was no faster.
        """
        pages = self._bytes[:: mmap.PAGESIZE]
        num_threads = len(os.sched_getaffinity(0)) if self.size_bytes >= MIN_SHARED_BYTES else 1
        if num_threads == 1:
            pages[:] = 0
            return

        def clear(part: NDArray[np.uint8]) -> None:
            part[:] = 0  # without the GIL

        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(clear, np.array_split(pages, num_threads)))

    def take(self, size_bytes: int) -> int:
        """The address of the next piece."""
        assert size_bytes % ALIGNMENT == 0, size_bytes
        assert self._used + size_bytes <= self.size_bytes, "more is taken than was planned"
        offset = self._used
        self._used += size_bytes
        self._taken.append((offset, size_bytes))
        return self._bytes.ctypes.data + offset

    def floats(self, shape: tuple[int, int]) -> NDArray[np.float32]:
        """The next piece as float32 of this shape."""
        return self.array(shape, np.dtype(np.float32))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next piece as zeros of this shape."""
        size = dtype.itemsize * math.prod(shape)
        self.take(size)
        return self._bytes[self._used - size : self._used].view(dtype).reshape(shape)

    def arrays(self, num_rows: int) -> Iterator[NDArray[np.uint8]]:
        """Each piece as [num_rows, bytes of a row]."""
        for offset, size in self._taken:
            yield self._bytes[offset : offset + size].reshape(num_rows, -1)


class NativeWeights:
    """Packed matrices and float32 vectors by canonical name."""

    def __init__(self, spec: ModelSpec, index: WeightIndex, native: NativeShape) -> None:
        self._spec, self._index, self._native = spec, index, native
        self._arena = Arena(weights_bytes(spec, index, native))
        self._matrices: dict[str, Weight] = {}
        self._vectors: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        return self._arena.size_bytes

    def load(
        self,
        reader: TensorReader,
        library: ctypes.CDLL,
        pool: int | None,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Every tensor that the spec names, once. Raises: WeightsError."""
        done = 0
        for name, shape in expected_tensors(self._spec):
            if len(shape) == 1:
                self._vectors[name] = self._load_vector(reader, name)
            else:
                self._matrices[name] = self._load_matrix(reader, name, library, pool)
            done += self._index[name].size_bytes
            on_progress(done, self._index.size_bytes)
        # Tensors that no product reads (rope tables of old files) count as done.
        on_progress(self._index.size_bytes, self._index.size_bytes)

    def _load_vector(self, reader: TensorReader, name: str) -> int:
        """Address of the vector in float32, padded with zeros; norm weights as they are multiplied."""
        values = reader.float32(name)
        if _norm_of(self._spec, name).add_one:
            values = values + np.float32(1)
        full = np.zeros(padded(values.size), np.float32)
        full[: values.size] = values
        address = self._arena.take(full.nbytes)
        ctypes.memmove(address, full.ctypes.data, full.nbytes)
        return address

    def _load_matrix(self, reader: TensorReader, name: str, library: ctypes.CDLL, pool: int | None) -> Weight:
        info = self._index[name]
        rows, columns = math.prod(info.shape[:-1]), info.shape[-1]
        kind = self._native.kind(info.format)
        weight = Weight(
            kind=kind,
            rows=rows,
            columns=padded(columns),
            data=self._arena.take(packed_bytes(kind, rows, columns)),
        )
        is_as_it_stands = self._native.dtype == AS_STORED and info.format in STORED_KINDS
        source: NDArray[np.generic]
        if is_as_it_stands:
            source, source_format = reader.rows(name), STORED_KINDS[info.format][1]
        else:
            source, source_format = reader.float32(name).reshape(rows, columns), SourceFormat.FLOATS
        source = np.ascontiguousarray(source)
        pack = Pack(
            source=source.ctypes.data,
            row_bytes=source.strides[0],
            format=source_format,
            kind=kind,
            rows=rows,
            columns=columns,
            data=weight.data,
        )
        library.trivet_pack(pool, ctypes.byref(pack))
        return weight

    def matrix(self, stem: str) -> Weight:
        """With its bias, where the files have one that the spec uses."""
        weight = self._matrices[f"{stem}.weight"]
        weight.bias = self._vectors.get(f"{stem}.bias")
        return weight

    def head(self) -> Weight:
        """The head; where it is tied, the embedding's matrix."""
        if not self._spec.tie_embeddings:
            return self.matrix("head")
        weight = Weight.from_buffer_copy(self._matrices["embed.weight"])
        weight.bias = self._vectors.get("head.bias")
        return weight

    def vector(self, name: str) -> int:
        return self._vectors[name]

    def layers(self, ropes: list[Rope]) -> ctypes.Array[Layer]:
        """All layers but for their caches."""
        layers = (Layer * self._spec.num_layers)()
        for index in range(self._spec.num_layers):
            layers[index] = self._layer(index, ropes)
        return layers

    def _layer(self, index: int, ropes: list[Rope]) -> Layer:
        kind = self._spec.layer(index)
        attention, mlp = kind.attention, kind.mlp
        assert isinstance(mlp, MLP)
        stem = f"layers.{index}"
        gate = self.matrix(f"{stem}.{'gate' if mlp.gated else 'up'}")
        up = self.matrix(f"{stem}.up") if mlp.gated else Weight()
        # Their padding rows are zeros and are computed: they are the padding columns of `down`.
        gate.rows = padded(gate.rows)
        up.rows = padded(up.rows)
        qk_norm = attention.qk_norm
        return Layer(
            **{name: self.matrix(f"{stem}.{name}") for name in ("q", "k", "v", "o", "down")},
            gate=gate,
            up=up,
            attention_norm=self.vector(f"{stem}.attention_norm.weight"),
            mlp_norm=self.vector(f"{stem}.mlp_norm.weight"),
            q_norm=self.vector(f"{stem}.q_norm.weight") if qk_norm else None,
            k_norm=self.vector(f"{stem}.k_norm.weight") if qk_norm else None,
            num_heads=attention.num_heads,
            window=attention.window or 0,
            rope=-1 if attention.rope is None else ropes.index(attention.rope),
            rope_dim=attention.rope.dim if attention.rope else 0,
            activation=ACTIVATIONS[mlp.activation],
            scale=attention.scale,
            qk_eps=qk_norm.eps if qk_norm else 0.0,
        )


def _norm_of(spec: ModelSpec, name: str) -> Norm:
    """The norm to which a vector belongs; a norm that changes nothing, for biases."""
    stem, _, part = name.rpartition(".")
    if part != "weight":
        return Norm()
    if stem.endswith(("q_norm", "k_norm")):
        return spec.layer(int(stem.split(".")[1])).attention.qk_norm or Norm()
    return spec.norm
