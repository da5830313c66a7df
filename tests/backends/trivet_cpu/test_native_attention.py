"""Attention over the paged cache against NumPy, at each instruction-set level that this CPU has."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.steps import Work
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_cpu.backend import CpuBackend
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import (
    Cache,
    CacheKind,
    LayerQueries,
    StepSequences,
    load_library,
)
from trivet_cpu.native_plan import PARTIAL_HEAD, PIECE_KEYS
from trivet_cpu.native_weights import Arena

Float32 = NDArray[np.float32]
LEVELS: list[object] = [*levels_of(Host().arch())]
if "amx" not in LEVELS:
    no_amx = pytest.mark.skip(reason="this CPU has no AMX, or the kernel gives no leave for it")
    LEVELS.append(pytest.param("amx", marks=no_amx))
# Of results whose values are about 1. bf16: queries, keys, values and shares of 8 bits each.
TOLERANCES = {CacheKind.F32: 1e-5, CacheKind.BF16: 0.02, CacheKind.INT8: 0.05}
NUMBER_BYTES = {CacheKind.F32: 4, CacheKind.BF16: 2, CacheKind.INT8: 1}
MAX_THREADS = 3
FULL_NAN = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]  # rounding its bits up makes -0 of it


@dataclass
class Kernels:
    """A level's library and a pool of each size."""

    library: ctypes.CDLL
    pools: list[int]


@pytest.fixture(scope="module", params=LEVELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    library = load_library(KernelCache().library(request.param))
    pools = [library.trivet_pool_create(count) for count in range(1, MAX_THREADS + 1)]
    yield Kernels(library, pools)
    for pool in pools:
        library.trivet_pool_destroy(pool)


@dataclass(frozen=True)
class Heads:
    """Of one layer."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    window: int = 0


@dataclass
class History:
    """Keys and values [length, num_kv_heads, head_dim]; queries [count, num_heads, head_dim] of the last."""

    keys: Float32
    values: Float32
    queries: Float32

    @classmethod
    def random(cls, heads: Heads, length: int, count: int, seed: int) -> History:
        generator = np.random.default_rng((seed, length))

        def normal(*shape: int) -> Float32:
            return generator.normal(size=shape).astype(np.float32)

        queries = normal(count, heads.num_heads, heads.head_dim) * np.float32(heads.head_dim**-0.5)
        kv = (length, heads.num_kv_heads, heads.head_dim)
        return cls(normal(*kv), normal(*kv), queries)

    def tail(self, count: int) -> History:
        """With the queries of its last tokens only."""
        return History(self.keys, self.values, self.queries[-count:])

    def head(self, length: int) -> History:
        """Without its last tokens; all of its tokens have to have queries."""
        return History(self.keys[:length], self.values[:length], self.queries[:length])

    def expected(self, window: int) -> Float32:
        length, (count, num_heads, _) = len(self.keys), self.queries.shape
        group = num_heads // self.keys.shape[1]
        keys = np.repeat(self.keys.astype(np.float64), group, axis=1)
        values = np.repeat(self.values.astype(np.float64), group, axis=1)
        scores = np.einsum("qhd,khd->hqk", self.queries.astype(np.float64), keys)
        behind = np.arange(length - count, length)[:, None] - np.arange(length)
        is_seen = (behind >= 0) & ((behind < window) if window else True)
        scores = np.where(is_seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        found: Float32 = np.einsum("hqk,khd->qhd", shares, values).astype(np.float32)
        return found


class PagedCache:
    """A cache in which every number that was not written is NaN, its blocks dealt out in random order."""

    def __init__(
        self, kernels: Kernels, kind: CacheKind, heads: Heads, sequences: Sequence[History], block_size: int
    ) -> None:
        counts = [-(-len(sequence.keys) // block_size) for sequence in sequences]
        scale_bytes = 4 if kind == CacheKind.INT8 else 0
        token_bytes = heads.num_kv_heads * (2 * heads.head_dim * NUMBER_BYTES[kind] + scale_bytes)
        size = sum(counts) * block_size * token_bytes
        self._arena = Arena(-(-size // 64) * 64)
        self.struct = Cache(
            kind=kind, block_size=block_size, num_heads=heads.num_kv_heads, head_dim=heads.head_dim,
            data=self._arena.take(self._arena.size_bytes),
        )  # fmt: skip
        ctypes.memset(self.struct.data, 0xFF, size)
        order = np.random.default_rng(len(counts)).permutation(sum(counts)).astype(np.int32)
        # To read what is no block would end the process.
        self.table: NDArray[np.int32] = np.full((len(counts), max(counts)), 1 << 24, np.int32)
        for number, blocks in enumerate(np.split(order, np.cumsum(counts)[:-1])):
            self.table[number, : len(blocks)] = blocks
        write, cache = kernels.library.trivet_write_kv, ctypes.byref(self.struct)
        for sequence, row in zip(sequences, self.table, strict=True):
            keys, values = sequence.keys.ctypes.data, sequence.values.ctypes.data
            for token in range(len(sequence.keys)):
                slot = int(row[token // block_size]) * block_size + token % block_size
                for head in range(heads.num_kv_heads):
                    offset = (token * heads.num_kv_heads + head) * heads.head_dim * 4
                    write(cache, head, slot, keys + offset, values + offset)


def _attend(
    kernels: Kernels,
    kind: CacheKind,
    heads: Heads,
    sequences: Sequence[History],
    *,
    block_size: int = 16,
    num_threads: int = 2,
    has_space: bool = True,
) -> list[Float32]:
    """Results [count, num_heads, head_dim] of each sequence; no split without space for partial results."""
    cache = PagedCache(kernels, kind, heads, sequences, block_size)
    rows = np.ascontiguousarray(np.concatenate([sequence.queries for sequence in sequences]))
    starts = np.cumsum([0, *(len(sequence.queries) for sequence in sequences)]).astype(np.int32)
    seq_lens = np.array([len(sequence.keys) for sequence in sequences], np.int32)
    pieces = sum(-(-int(length) // PIECE_KEYS) for length in seq_lens)
    num_partials = pieces * 8 * heads.num_heads * (heads.head_dim + PARTIAL_HEAD) if has_space else 0
    layer = LayerQueries(
        ctypes.pointer(cache.struct), heads.num_heads, heads.window, rows.ctypes.data, rows[0].size
    )
    step = StepSequences(
        len(sequences),
        starts.ctypes.data,
        seq_lens.ctypes.data,
        cache.table.ctypes.data,
        cache.table.shape[1],
    )
    kernels.library.trivet_attend_cache(
        kernels.pools[num_threads - 1], ctypes.byref(layer), ctypes.byref(step), num_partials
    )
    return np.split(rows, starts[1:-1])


def _expect(found: Sequence[Float32], sequences: Sequence[History], heads: Heads, kind: CacheKind) -> None:
    for result, sequence in zip(found, sequences, strict=True):
        np.testing.assert_allclose(result, sequence.expected(heads.window), atol=TOLERANCES[kind])


KINDS = pytest.mark.parametrize("kind", list(CacheKind), ids=lambda kind: kind.name)
LENGTHS = (1, 2, 15, 16, 17, 64, 65, 255, 256, 257, 511, 700)


@KINDS
@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 96, 112, 128, 256])
def test_heads_of_any_size(kernels: Kernels, kind: CacheKind, head_dim: int) -> None:
    heads = Heads(4, 2, head_dim)
    sequences = [History.random(heads, length, min(3, length), 1) for length in (1, 40, 300)]
    _expect(_attend(kernels, kind, heads, sequences), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 25, 71])
def test_any_number_of_heads_shares_keys(kernels: Kernels, kind: CacheKind, group: int) -> None:
    """Also more than are computed together, 24; the longest sequence is cut into pieces."""
    heads = Heads(2 * group, 2, 32)
    sequences = [History.random(heads, length, count, 2) for length, count in ((4000, 1), (290, 1), (70, 30))]
    _expect(_attend(kernels, kind, heads, sequences), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("num_rows", [15, 16, 17, 31, 32, 33, 95, 96, 97, 193])
@pytest.mark.parametrize("prefix", [0, 7, 250])
def test_chunks_of_any_number_of_rows(kernels: Kernels, kind: CacheKind, num_rows: int, prefix: int) -> None:
    """One query head: rows are tokens. AMX computes 16 and 32 of them at once, a unit has 96."""
    heads = Heads(1, 1, 48)
    sequences = [History.random(heads, prefix + num_rows, num_rows, 16), History.random(heads, 3, 3, 17)]
    _expect(_attend(kernels, kind, heads, sequences), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7, 8])
def test_chunks_of_heads_of_any_size(kernels: Kernels, kind: CacheKind, head_dim: int, group: int) -> None:
    heads = Heads(group, 1, head_dim)
    sequences = [History.random(heads, 300, 45, 18), History.random(heads, 21, 21, 19)]
    _expect(_attend(kernels, kind, heads, sequences), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_contexts_of_any_length(kernels: Kernels, kind: CacheKind, block_size: int) -> None:
    """Past the end of each there is NaN, also within its last block."""
    heads = Heads()
    sequences = [History.random(heads, length, 1, 4) for length in LENGTHS]
    found = _attend(kernels, kind, heads, sequences, block_size=block_size)
    _expect(found, sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("prefix", [0, 5, 250, 256, 300])
def test_a_chunk_after_its_prefix(kernels: Kernels, kind: CacheKind, prefix: int) -> None:
    heads = Heads()
    sequences = [History.random(heads, prefix + 75, 75, 5), History.random(heads, prefix + 1, 1, 6)]
    _expect(_attend(kernels, kind, heads, sequences, block_size=32), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("window", [1, 16, 24, 100, 256, 300])
def test_a_window_hides_what_is_further_back(kernels: Kernels, kind: CacheKind, window: int) -> None:
    heads = Heads(6, 2, 32, window)
    sequences = [History.random(heads, length, min(50, length), 7) for length in (1, 30, 270, 600)]
    sequences += [History.random(heads, 650, 1, 8)]
    _expect(_attend(kernels, kind, heads, sequences), sequences, heads, kind)


@KINDS
def test_many_tiny_sequences(kernels: Kernels, kind: CacheKind) -> None:
    heads = Heads(4, 4, 16)
    sequences = [History.random(heads, 1 + i % 5, 1 + i % 2 * (i % 5), i) for i in range(200)]
    _expect(_attend(kernels, kind, heads, sequences, num_threads=3), sequences, heads, kind)


@KINDS
@pytest.mark.parametrize("window", [0, 400])
def test_a_result_depends_on_no_other(kernels: Kernels, kind: CacheKind, window: int) -> None:
    """Bit for bit: cut into pieces or not, alone or beside others, with any number of threads."""
    heads = Heads(window=window)
    sequences = [History.random(heads, length, count, 9) for length, count in ((1400, 1), (300, 1), (520, 4))]
    (alone,) = _attend(kernels, kind, heads, sequences[:1], num_threads=1)
    for num_threads in (1, 2, 3):
        for has_space in (True, False):
            settings = {"num_threads": num_threads, "has_space": has_space}
            (same,) = _attend(kernels, kind, heads, sequences[:1], **settings)  # type: ignore[arg-type]
            together = _attend(kernels, kind, heads, sequences[::-1], **settings)  # type: ignore[arg-type]
            np.testing.assert_array_equal(same, alone, err_msg=str(settings))
            np.testing.assert_array_equal(together[-1], alone, err_msg=str(settings))


@KINDS
def test_a_result_does_not_depend_on_chunks(kernels: Kernels, kind: CacheKind) -> None:
    """Bit for bit: a prompt at once, in chunks of any size, or token after token."""
    heads = Heads()
    whole = History.random(heads, 600, 600, 10)
    (expected,) = _attend(kernels, kind, heads, [whole])
    for start, stop in ((0, 1), (0, 300), (255, 258), (300, 600), (599, 600)):
        (found,) = _attend(kernels, kind, heads, [whole.head(stop).tail(stop - start)])
        np.testing.assert_array_equal(found, expected[start:stop], err_msg=f"tokens {start} to {stop}")


@KINDS
def test_scores_of_any_size_overflow_nothing(kernels: Kernels, kind: CacheKind) -> None:
    """The largest takes all, wherever it stands."""
    heads = Heads(3, 1, 64)
    for place in (0, 100, 399):
        sequence = History.random(heads, 400, 1, 11)
        sequence.keys[:] = -30
        sequence.keys[place] = 30
        sequence.queries[:] = 1
        (found,) = _attend(kernels, kind, heads, [sequence])
        expected = np.broadcast_to(sequence.values[place], (1, 3, 64))
        np.testing.assert_allclose(found, expected, atol=TOLERANCES[kind])


@KINDS
@pytest.mark.parametrize("bad", [np.nan, FULL_NAN, np.inf], ids=["nan", "full-nan", "inf"])
@pytest.mark.parametrize("part", ["keys", "values", "queries"])
def test_a_bad_number_spoils_its_own_sequence_only(
    kernels: Kernels, kind: CacheKind, part: str, bad: float
) -> None:
    heads = Heads()
    sequences = [History.random(heads, length, 1, 12) for length in (40, 300, 33)]
    getattr(sequences[1], part)[0, 0, 5] = bad
    found = _attend(kernels, kind, heads, sequences)
    # The first KV head, of three query heads; of queries the first head alone.
    assert not np.isfinite(found[1][:, 0]).all()
    assert np.isfinite(found[1][:, 3:]).all()
    _expect([found[0], found[2]], [sequences[0], sequences[2]], heads, kind)


@KINDS
@pytest.mark.parametrize("part", ["keys", "values", "queries"])
def test_a_bad_number_in_a_chunk_spoils_no_other_sequence(
    kernels: Kernels, kind: CacheKind, part: str
) -> None:
    heads = Heads()
    sequences = [History.random(heads, length, 40, 20) for length in (40, 300, 77)]
    getattr(sequences[1], part)[:] = np.nan
    found = _attend(kernels, kind, heads, sequences)
    assert np.isnan(found[1]).all()
    _expect([found[0], found[2]], [sequences[0], sequences[2]], heads, kind)


@KINDS
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e4])
def test_a_value_comes_back_as_it_was_written(kernels: Kernels, kind: CacheKind, size: float) -> None:
    """The only token of a sequence: its value is the result. int8: half a step of 1/127 of the largest."""
    heads = Heads(2, 2, 96)
    sequence = History.random(heads, 1, 1, 13)
    sequence.values *= np.float32(size)
    (found,) = _attend(kernels, kind, heads, [sequence])
    largest = np.abs(sequence.values).max(axis=-1, keepdims=True)
    bounds = {
        CacheKind.F32: 0 * largest,
        CacheKind.BF16: np.abs(sequence.values) * 2**-8,
        CacheKind.INT8: largest / 127 * (1 + 2**-7) / 2 * 1.01,
    }
    assert (np.abs(found - sequence.values) <= bounds[kind]).all()


def test_the_error_of_eight_bits_is_small_beside_the_result(kernels: Kernels) -> None:
    """Of 2,000 random keys and values: 0.4 % of the result's size in bf16, 0.8 % in int8, at most."""
    heads = Heads()
    sequence = History.random(heads, 2000, 8, 14)
    sequence.queries *= 3  # shares far from even
    expected = sequence.expected(0)
    size = math.sqrt(float((expected**2).mean()))
    errors = {}
    for kind in (CacheKind.BF16, CacheKind.INT8):
        (found,) = _attend(kernels, kind, heads, [sequence])
        errors[kind] = math.sqrt(float(((found - expected) ** 2).mean())) / size
    assert errors[CacheKind.BF16] < 0.01
    assert errors[CacheKind.INT8] < 0.02, errors


def test_a_long_sequence_is_cut_in_every_layer_alike() -> None:
    """SmolLM2 at 700 tokens, three pieces: the last ones say the same with three threads as with one."""
    prompt = np.random.default_rng(15).integers(3, 49_000, 700).tolist()
    alone, together = (_logprobs_of_decoding(prompt, num_threads) for num_threads in (1, 3))
    assert len(alone) == 4
    assert alone == together


def _logprobs_of_decoding(prompt: list[int], num_threads: int) -> list[float]:
    """Of its last four tokens, computed one by one."""
    files, backend = open_model(find_demo_model()), CpuBackend()
    assert files.spec is not None
    config = RunnerConfig(
        max_num_seqs=1,
        max_model_len=768,
        num_blocks=49,
        max_num_batched_tokens=768,
        options={"kernels": "native", "num_threads": str(num_threads)},
    )
    devices = backend.probe(1.0)
    plan = backend.plan(files.spec, files.weights, config, devices)
    runner = backend.create_runner(files.spec, config, plan, devices)
    try:
        runner.load(files.weights, lambda done, total: None)
        runner.allocate_kv()
        driver = Driver(runner, plan, vocab_size=files.spec.vocab_size, max_num_seqs=1)
        sequence = driver.add(prompt)
        driver.run([Work(sequence, len(prompt) - 5)])
        logprobs: list[float] = driver.score(sequence, chunk=1).logprobs.tolist()
        return logprobs
    finally:
        runner.close()
