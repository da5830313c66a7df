"""Each kernel by itself against NumPy, on every level that this CPU runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_functions import NativeFunctions
from trivet_cpu.native_library import (
    AttentionSpace,
    Cache,
    Kind,
    Layer,
    Model,
    Pack,
    SourceFormat,
    Step,
    Weight,
    load_library,
)
from trivet_cpu.native_plan import CACHE_KINDS, PIECE_KEYS, packed_bytes

Float32 = NDArray[np.float32]
BLOCK_SIZE, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS = 16, 32, 6, 2
# Of the largest result; bfloat16 keys and values have 8 bits.
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "int8": 3e-2}


@dataclass
class Kernels:
    """A level's library and a pool of three threads."""

    library: ctypes.CDLL
    pool: int

    @property
    def functions(self) -> NativeFunctions:
        return NativeFunctions(self.library, self.pool)


@pytest.fixture(scope="module", params=levels_of(Host().arch()))
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    library = load_library(KernelCache().library(request.param))
    pool = library.trivet_pool_create(3)
    yield Kernels(library, pool)
    library.trivet_pool_destroy(pool)


def _normal(*shape: int, seed: int = 1) -> Float32:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_embedding_is_the_scaled_row_of_each_token(kernels: Kernels) -> None:
    values = _normal(40, 64)
    data = np.empty(packed_bytes(Kind.F32, 40, 64) // 4, np.float32)
    pack = Pack(
        source=values.ctypes.data,
        row_bytes=values.strides[0],
        format=SourceFormat.FLOATS,
        kind=Kind.F32,
        rows=40,
        columns=64,
        data=data.ctypes.data,
    )
    kernels.library.trivet_pack(kernels.pool, ctypes.byref(pack))
    weight = Weight(kind=Kind.F32, rows=40, columns=64, data=data.ctypes.data)
    token_ids = np.array([39, 0, 7, 7], np.int32)
    np.testing.assert_array_equal(kernels.functions.embed(weight, token_ids, 64, 2.0), 2 * values[token_ids])


@pytest.mark.parametrize("size", [16, 64, 576])
def test_rms_norm(kernels: Kernels, size: int) -> None:
    x, weight = 5 * _normal(7, size), _normal(size, seed=2)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 0.5) * weight
    before = x.copy()
    np.testing.assert_allclose(kernels.functions.rms_norm(x, weight, 0.5), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dim", [HEAD_DIM, HEAD_DIM // 2])
def test_rope_turns_each_pair_by_its_angle(kernels: Kernels, dim: int) -> None:
    x, positions = _normal(5, NUM_HEADS, HEAD_DIM), np.array([0, 1, 5, 900, 3], np.int32)
    frequencies = (10_000.0 ** (-np.arange(dim // 2) / (dim // 2))).astype(np.float32)
    angles = positions[:, None].astype(np.float32) * frequencies
    pairs = x[..., : dim // 2] + 1j * x[..., dim // 2 : dim]
    turned = pairs * (1.5 * np.exp(1j * angles.astype(np.float64)))[:, None]
    expected = np.concatenate((turned.real, turned.imag, x[..., dim:]), -1)
    np.testing.assert_allclose(kernels.functions.rope(x, positions, frequencies, 1.5), expected, atol=1e-5)


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activation(kernels: Kernels, kind: str, is_gated: bool) -> None:
    gate, up = 4 * _normal(9, 48), _normal(9, 48, seed=2)
    x = gate.astype(np.float64)
    expected = {
        "silu": x / (1 + np.exp(-x)),
        "gelu": 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "gelu_tanh": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": np.maximum(x, 0),
    }[kind] * (up if is_gated else 1)
    found = kernels.functions.activation(gate, up if is_gated else None, kind)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


class Attention:
    """A paged cache whose every slot is NaN until it is written, and one layer over it."""

    def __init__(self, kernels: Kernels, kv_dtype: str, num_blocks: int, window: int) -> None:
        self._kernels, self._scale, self._window = kernels, 0.3, window
        size = num_blocks * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM
        self._kv = np.full(2 * size, -1, np.int32).view(np.float32)  # every bit set: NaN in each kind; ample
        cache = Cache(
            kind=CACHE_KINDS[kv_dtype], block_size=BLOCK_SIZE, num_heads=NUM_KV_HEADS, head_dim=HEAD_DIM,
            data=self._kv.ctypes.data,
        )  # fmt: skip
        self._layers = (Layer * 1)(
            Layer(cache=cache, num_heads=NUM_HEADS, window=window, rope=-1, scale=self._scale)
        )
        self._unpacked = np.zeros((3, 2 * PIECE_KEYS * HEAD_DIM), np.uint16)
        self._scratch = np.zeros(3 * kernels.library.trivet_scratch_bytes() + 64, np.uint8)

    def run(
        self, q: Float32, k: Float32, v: Float32, lens: list[int], counts: list[int], table: NDArray[np.int32]
    ) -> Float32:
        """[T, ...] of sequences with `counts` new tokens and lengths `lens` -> [T, heads, head_dim]."""
        num_tokens = len(q)
        qkv = np.concatenate([part.reshape(num_tokens, -1) for part in (q, k, v)], axis=1)
        qkv = np.ascontiguousarray(qkv)
        slots = np.zeros(num_tokens, np.int64)
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        seq_lens = np.array(lens, np.int32)
        positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lens, counts, strict=True)])
        positions = positions.astype(np.int32)
        aligned = -self._scratch.ctypes.data % 64
        model = Model(
            layers=self._layers, num_layers=1, qkv_stride=qkv.shape[1], qkv=qkv.ctypes.data,
            slots=slots.ctypes.data,
            attention=AttentionSpace(
                unpacked=self._unpacked.ctypes.data, unpacked_stride=self._unpacked.shape[1]
            ),
            scratch=self._scratch.ctypes.data + aligned,
        )  # fmt: skip
        step = Step(
            num_tokens=num_tokens, num_seqs=len(lens), positions=positions.ctypes.data,
            query_start_loc=starts.ctypes.data, seq_lens=seq_lens.ctypes.data,
            block_table=table.ctypes.data, table_stride=table.shape[1],
        )  # fmt: skip
        self._kernels.library.trivet_attend(self._kernels.pool, ctypes.byref(model), ctypes.byref(step), 0)
        return qkv[:, : NUM_HEADS * HEAD_DIM].reshape(num_tokens, NUM_HEADS, HEAD_DIM)

    def expected(self, q: Float32, keys: Float32, values: Float32, first: int) -> Float32:
        """Of one sequence: queries [n] at positions first.. over all its keys."""
        out = np.empty_like(q)
        group = NUM_HEADS // NUM_KV_HEADS
        for token in range(len(q)):
            stop = first + token + 1
            begin = max(0, stop - self._window) if self._window else 0
            for head in range(NUM_HEADS):
                scores = keys[begin:stop, head // group].astype(np.float64) @ q[token, head] * self._scale
                weights = np.exp(scores - scores.max())
                out[token, head] = weights / weights.sum() @ values[begin:stop, head // group]
        return out


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_attention_over_block_tables(kernels: Kernels, kv_dtype: str, window: int) -> None:
    """Three sequences: a prompt in two chunks, a decode step, and a short one in one block."""
    final, table = [50, 33, 3], np.array([[7, 2, 9, 4], [1, 3, 8, 0], [5, 0, 0, 0]], np.int32)
    q, k, v = (
        [_normal(n, heads, HEAD_DIM, seed=10 * i + n) for n in final]
        for i, heads in enumerate((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS))
    )
    attention = Attention(kernels, kv_dtype, 10, window)
    done = [0, 0, 0]
    for lens in ([20, 32, 2], [50, 33, 3]):
        counts = [n - d for n, d in zip(lens, done, strict=True)]
        parts = [
            np.concatenate([x[i][done[i] : lens[i]] for i in range(3)]).astype(np.float32) for x in (q, k, v)
        ]
        found = attention.run(*parts, lens, counts, table)
        expected = np.concatenate(
            [attention.expected(q[i][done[i] : lens[i]], k[i], v[i], done[i]) for i in range(3)]
        )
        np.testing.assert_allclose(found, expected, atol=TOLERANCE[kv_dtype] * np.abs(expected).max())
        done = lens
