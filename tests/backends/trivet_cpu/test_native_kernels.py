"""Packing and products of the native kernels against NumPy, on every level that this CPU runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.weights.dequantize import dequantize
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import Activations, Kind, Pack, SourceFormat, Weight, load_library
from trivet_cpu.native_model import activations
from trivet_cpu.native_plan import form_bytes, packed_bytes, padded
from trivet_cpu.native_weights import Arena

Float32 = NDArray[np.float32]
LEVELS: list[object] = [*levels_of(Host().arch())]
if "amx" not in LEVELS:
    no_amx = pytest.mark.skip(reason="this CPU has no AMX, or the kernel gives no leave for it")
    LEVELS.append(pytest.param("amx", marks=no_amx))
# Each kind of weights with each form of activations that multiplies it; with bf16 quantised ones in tiles.
PATHS = (
    (Kind.F32, "f32"),
    (Kind.BF16, "bf16"),
    (Kind.Q8, "q8"),
    (Kind.Q4, "q8"),
    (Kind.Q8, "bf16"),
    (Kind.Q4, "bf16"),
)
each_path = pytest.mark.parametrize(("kind", "form"), PATHS, ids=[f"{k.name}-{form}" for k, form in PATHS])
# Of the largest result. Integers: activations have 7 bits and a sign.
TOLERANCES = {Kind.F32: 3e-6, Kind.BF16: 5e-3, Kind.Q8: 5e-3, Kind.Q4: 5e-3}
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q4_k": 144}
BLOCK_COLUMNS = {"q8_0": 32, "q4_0": 32, "q4_1": 32, "q4_k": 256}


@dataclass
class Kernels:
    """A level's library and a pool of two threads."""

    library: ctypes.CDLL
    pool: int
    level: str


@pytest.fixture(scope="module", params=LEVELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    library = load_library(KernelCache().library(request.param))
    pool = library.trivet_pool_create(2)
    yield Kernels(library, pool, request.param)
    library.trivet_pool_destroy(pool)


class Packed:
    """A packed matrix and the memory that it stands in."""

    def __init__(
        self,
        kernels: Kernels,
        source: NDArray[np.generic],
        form: SourceFormat,
        kind: Kind,
        shape: tuple[int, int],
    ) -> None:
        rows, columns = shape
        size = packed_bytes(kind, rows, columns)
        self.arena = Arena(size)
        self.weight = Weight(kind=kind, rows=rows, columns=padded(columns), data=self.arena.take(size))
        source = np.ascontiguousarray(source)
        pack = Pack(
            source=source.ctypes.data, row_bytes=source.strides[0], format=form, kind=kind, rows=rows,
            columns=columns, data=self.weight.data,
        )  # fmt: skip
        kernels.library.trivet_pack(kernels.pool, ctypes.byref(pack))

    def unpacked(self, kernels: Kernels, columns: int) -> Float32:
        out = np.empty((self.weight.rows, columns), np.float32)
        for row in range(self.weight.rows):
            kernels.library.trivet_unpack_row(ctypes.byref(self.weight), row, columns, out[row].ctypes.data)
        return out


def _random_blocks(name: str, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Rows of a GGUF format with any numbers and sensible scales."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, columns // BLOCK_COLUMNS[name], BLOCK_BYTES[name]), np.uint8)
    num_halves = 2 if name in ("q4_1", "q4_k") else 1
    halves = generator.uniform(0.001, 0.02, (*blocks.shape[:2], num_halves)).astype(np.float16)
    if name == "q4_1":
        halves[..., 1] *= -8
    blocks[..., : 2 * num_halves] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize(
    ("name", "kind"), [("q8_0", Kind.Q8), ("q4_0", Kind.Q4), ("q4_1", Kind.Q4), ("q4_k", Kind.Q4)]
)
def test_a_stored_format_is_packed_number_for_number(kernels: Kernels, name: str, kind: Kind) -> None:
    """Q4_K's scales are products, rounded to half precision: 2^-11 of each, of scale and of minimum."""
    rows, columns = 37, 512
    raw = _random_blocks(name, rows, columns, 1)
    packed = Packed(kernels, raw, SourceFormat[name.upper()], kind, (rows, columns))
    expected = dequantize(raw, name, (rows, columns))
    tolerance = 2 * np.abs(expected).max() * 2**-11 if name == "q4_k" else 0
    np.testing.assert_allclose(packed.unpacked(kernels, columns), expected, rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize(("kind", "tolerance"), [(Kind.F32, 0), (Kind.BF16, 2**-8), (Kind.Q8, 0.6 / 127)])
def test_floats_are_packed_to_the_nearest(kernels: Kernels, kind: Kind, tolerance: float) -> None:
    values = np.random.default_rng(2).normal(size=(50, 80)).astype(np.float32)
    values[3] = 0
    found = Packed(kernels, values, SourceFormat.FLOATS, kind, values.shape).unpacked(kernels, 80)
    np.testing.assert_allclose(found, values, atol=tolerance * np.abs(values).max())


def _quantised(kernels: Kernels, x: Float32, columns: int, form: str) -> tuple[Activations, Arena]:
    """Rows past the last one of `x` are NaN: nobody may be impressed by them."""
    size = math.ceil(form_bytes(form, len(x), columns) / 64) * 64
    arena = Arena(size)
    rows = activations({f"x.{form}": arena.take(size)}, "x", columns)
    (raw,) = arena.arrays(1)
    raw[:] = 255
    kernels.library.trivet_quantise(ctypes.byref(rows), x.ctypes.data, len(x), x.shape[1])
    return rows, arena


def _skip_without_tiles(kernels: Kernels, kind: Kind, form: str) -> None:
    if kind in (Kind.Q8, Kind.Q4) and form == "bf16" and kernels.level != "amx":
        pytest.skip(f"{kernels.level} has no tiles: quantised weights are multiplied with integers")


def _product(kernels: Kernels, packed: Packed, x: Float32, form: str) -> Float32:
    rows, arena = _quantised(kernels, x, packed.weight.columns, form)
    out = np.full((len(x), packed.weight.rows + 5), 7, np.float32)
    kernels.library.trivet_multiply(
        kernels.pool, ctypes.byref(packed.weight), ctypes.byref(rows), len(x), out.ctypes.data, out.shape[1]
    )
    assert arena.size_bytes
    assert (out[:, packed.weight.rows :] == 7).all(), "a product wrote past its columns"
    return out[:, : packed.weight.rows]


def _random_weight(kernels: Kernels, kind: Kind, shape: tuple[int, int], seed: int) -> Packed:
    """Q4: as many columns as are padded to."""
    if kind is Kind.Q4:
        return Packed(kernels, _random_blocks("q4_1", *shape, seed), SourceFormat.Q4_1, kind, shape)
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return Packed(kernels, values, SourceFormat.FLOATS, kind, shape)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 49, 100, 257])
@each_path
@pytest.mark.parametrize("shape", [(96, 256), (40, 80), (7, 33), (33, 1100)])
def test_products_equal_numpy_s(
    kernels: Kernels, kind: Kind, form: str, num_rows: int, shape: tuple[int, int]
) -> None:
    """Row counts around the borders of tiles and blocks; depths that one piece of scratch holds, and not."""
    _skip_without_tiles(kernels, kind, form)
    if kind is Kind.Q4:
        shape = (shape[0], padded(shape[1]))
    x = np.random.default_rng(num_rows).normal(size=(num_rows, shape[1])).astype(np.float32)
    packed = _random_weight(kernels, kind, shape, 3)
    expected = x.astype(np.float64) @ packed.unpacked(kernels, shape[1]).T
    scale = np.abs(x).max() * np.abs(packed.unpacked(kernels, shape[1])).max() * shape[1] ** 0.5
    found = _product(kernels, packed, x, form)
    np.testing.assert_allclose(found, expected, atol=TOLERANCES[kind] * scale)


@pytest.mark.parametrize("kind", [Kind.Q8, Kind.Q4])
def test_quantised_weights_lose_no_more_in_tiles_than_by_bfloat16(kernels: Kernels, kind: Kind) -> None:
    """Both factors rounded to 8 bits lose 2.4e-3 of the result (root mean square), integers 5e-3.

    Row by row, since rows of weights that are a million times smaller than others lose no more.
    """
    _skip_without_tiles(kernels, kind, "bf16")
    generator = np.random.default_rng(11)
    sizes = 10.0 ** np.linspace(-4, 2, 48)[:, None]
    x = generator.normal(size=(64, 512)).astype(np.float32)
    if kind is Kind.Q8:
        source = (generator.normal(size=(48, 512)) * sizes).astype(np.float32)
        source[:, ::3] = 0
        packed = Packed(kernels, source, SourceFormat.FLOATS, kind, source.shape)
    else:
        blocks = _random_blocks("q4_1", 48, 512, 11).reshape(48, 16, 20)
        halves = blocks[..., :4].view(np.float16)
        blocks[..., :4] = (halves * (sizes[..., None] + 1e-3)).astype(np.float16).view(np.uint8)
        packed = Packed(kernels, blocks.reshape(48, -1), SourceFormat.Q4_1, kind, (48, 512))
    expected = x.astype(np.float64) @ packed.unpacked(kernels, 512).T
    error = _product(kernels, packed, x, "bf16") - expected
    assert (np.sqrt((error**2).mean(0) / (expected**2).mean(0)) < 4e-3).all()


@pytest.mark.parametrize("kind", [Kind.Q8, Kind.Q4])
def test_a_row_of_weights_with_a_bad_scale_is_nan_and_others_are_not(kernels: Kernels, kind: Kind) -> None:
    _skip_without_tiles(kernels, kind, "bf16")
    name, size = ("q8_0", 34) if kind is Kind.Q8 else ("q4_1", 20)
    blocks = _random_blocks(name, 40, 64, 12).reshape(40, 2, size)
    for row, bad in ((3, np.inf), (20, np.nan), (39, -np.inf)):
        blocks[row, 1, :2] = np.array([bad], np.float16).view(np.uint8)
    packed = Packed(kernels, blocks.reshape(40, -1), SourceFormat[name.upper()], kind, (40, 64))
    x = np.ones((17, 64), np.float32)
    is_bad = ~np.isfinite(_product(kernels, packed, x, "bf16"))
    assert np.flatnonzero(is_bad.all(0)).tolist() == [3, 20, 39]
    assert is_bad.sum() == 3 * 17


def test_the_largest_numbers_of_both_sides_do_not_overflow(kernels: Kernels) -> None:
    """255 * 127 * 2 is beyond 16 bits, in which AVX2 adds two products."""
    values = np.where(np.arange(256) % 2, -127.0, 127.0).astype(np.float32) * np.ones((32, 1), np.float32)
    packed = Packed(kernels, values, SourceFormat.FLOATS, Kind.Q8, (32, 256))
    for x in (values[:1], -values[:1], np.abs(values[:1])):
        np.testing.assert_allclose(_product(kernels, packed, x, "q8"), x @ values.T, rtol=1e-5, atol=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@each_path
def test_a_bad_activation_spoils_its_own_row_only(
    kernels: Kernels, kind: Kind, form: str, bad: float
) -> None:
    _skip_without_tiles(kernels, kind, form)
    packed = _random_weight(kernels, kind, (32, 64), 5)
    x = np.random.default_rng(6).normal(size=(5, 64)).astype(np.float32)
    x[2, 40] = bad
    is_finite = np.isfinite(_product(kernels, packed, x, form)).all(axis=1)
    assert is_finite.tolist() == [True, True, False, True, True]


def _bits(x: Float32) -> NDArray[np.uint32]:
    return np.ascontiguousarray(x).view(np.uint32)


@each_path
def test_a_row_s_product_is_the_same_alone_and_among_others(kernels: Kernels, kind: Kind, form: str) -> None:
    """Bit for bit: a request's result does not change with the batch that it happens to be in.

    Only the form of the activations changes it: quantised weights take another one in steps of many rows.
    """
    _skip_without_tiles(kernels, kind, form)
    packed = _random_weight(kernels, kind, (48, 96), 7)
    x = np.random.default_rng(8).normal(size=(40, 96)).astype(np.float32)
    x[::3, 5] *= 50
    together = _bits(_product(kernels, packed, x, form))
    for count in (1, 2, 3, 5, 9, 15, 16, 17, 29, 39):
        for part in (slice(count), slice(count, 2 * count)):
            np.testing.assert_array_equal(_bits(_product(kernels, packed, x[part], form)), together[part])


# `QuantisedGroup` of kernels/weights.h.
GROUP_TYPE = np.dtype(
    [
        ("numbers", "i1", 32),
        ("high", "i1", 4),
        ("scale", "f4"),
        ("offset", "i4"),
        ("start", "i4"),
        ("zero", "f4"),
        ("at", "u2"),
        ("factor", "u2"),
        ("sums", "u2", 2),
        ("pad", "i4"),
    ]
)


def _groups(arena: Arena, num_rows: int, columns: int) -> NDArray[np.void]:
    """[num_rows, groups] out of [rows / 16, groups, 16]."""
    (raw,) = arena.arrays(1)
    groups = raw.reshape(-1).view(GROUP_TYPE).reshape(-1, columns // 32, 16)
    return groups.transpose(0, 2, 1).reshape(-1, columns // 32)[:num_rows]


def test_the_largest_activations_take_no_bits_from_the_others(kernels: Kernels) -> None:
    """Every number within half a step of a scale that the seven other words of its group set.

    Scales are eighths of a power of two, rounded up.
    """
    generator = np.random.default_rng(9)
    x = generator.normal(size=(37, 128)).astype(np.float32)
    x[:, 40] = 3000
    x[5, 64:96] = 0
    x[6, 3], x[6, 31] = -70, 60  # two large ones: the second sets the scale
    _, arena = _quantised(kernels, x, 128, "q8")
    groups = _groups(arena, 37, 128)
    high = np.zeros((37, 4, 8, 4), np.int64)
    word = groups["at"] // 64
    np.put_along_axis(high, word[..., None, None], groups["high"][..., None, :].astype(np.int64), axis=2)
    numbers = groups["numbers"].astype(np.int64) + 128 * high.reshape(37, 4, 32)
    found = groups["scale"][..., None] * numbers.astype(np.float64)
    wanted = x.reshape(37, 4, 32)
    words = np.abs(wanted).reshape(37, 4, 8, 4).max(-1)
    np.testing.assert_array_equal(words.argmax(-1), word)
    largest, second = words.max(-1), np.sort(words, axis=-1)[..., -2]
    excess = groups["scale"] / np.maximum(np.maximum(second / 127, largest / 16319), 1e-30)
    assert (groups["scale"][5, 2] == 0) == (largest[5, 2] == 0)
    excess[5, 2] = 1
    assert excess.min() >= 1 - 1e-6
    assert excess.max() <= 1.125
    mantissas, exponents = np.frexp(groups["scale"])
    np.testing.assert_array_equal(groups["factor"], np.where(mantissas, mantissas * 256 - 128, 0))
    assert (np.abs(found - wanted) <= groups["scale"][..., None] * 0.5001).all()
    np.testing.assert_array_equal(groups["offset"], -128 * numbers.sum(-1))
    sums = (groups["sums"][:, ::2].astype(np.uint32) << 16).view(np.float32).reshape(37, 4)
    np.testing.assert_allclose(sums, found.sum(-1), rtol=2**-8, atol=1e-3)
    dots = generator.integers(-500_000, 500_000, (37, 4), np.int32)  # sums as Q4 has them
    as_float = ((groups["start"] << 7) + dots).view(np.float32) + groups["zero"]
    wanted_dots = np.ldexp(dots - 8.0 * numbers.sum(-1), exponents - 1)
    np.testing.assert_array_equal(as_float[mantissas != 0], wanted_dots[mantissas != 0])
