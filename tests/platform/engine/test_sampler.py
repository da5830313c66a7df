"""The reference sampler against a naive one, row by row in float64, and against exact distributions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trivet.contract import NO_TARGET, Sampling
from trivet.engine.sampler import count_tokens, sample_pieces, sample_rows

Float64 = NDArray[np.float64]
CLOSE = 1e-5  # a decision nearer to its border than this may fall either way in float32


@dataclass(frozen=True)
class Row:
    """One row's wishes, in plain Python."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: tuple[float, float] = (0.0, 0.0)
    draws: bool = True
    target: int = NO_TARGET
    edits: dict[int, tuple[float, float]] = field(default_factory=dict)
    allowed: frozenset[int] | None = None


def columns(rows: list[Row], vocab_size: int, **more: Any) -> Sampling:
    edits = [edit for row in rows for edit in sorted(row.edits.items())]
    masked = [index for index, row in enumerate(rows) if row.allowed is not None]
    bits = np.zeros((len(masked), -(-vocab_size // 32)), np.uint32)
    for at, index in enumerate(masked):
        for token in rows[index].allowed or ():
            bits[at, token // 32] |= np.uint32(1 << token % 32)
    return Sampling(
        draws=np.array([row.draws for row in rows], np.bool_),
        target_ids=np.array([row.target for row in rows], np.int32),
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_k=np.array([row.top_k for row in rows], np.int32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        uniform=np.array([row.uniform for row in rows], np.float32),
        edit_start=np.cumsum([0, *(len(row.edits) for row in rows)], dtype=np.int32) if edits else None,
        edit_ids=np.array([token for token, _ in edits], np.int32) if edits else None,
        edit_mul=np.array([mul for _, (mul, _) in edits], np.float32) if edits else None,
        edit_add=np.array([add for _, (_, add) in edits], np.float32) if edits else None,
        mask_rows=np.array(masked, np.int32) if masked else None,
        mask_bits=bits if masked else None,
        **more,
    )


def edited_logits(logits: NDArray[np.float32], row: Row) -> Float64:
    values = logits.astype(np.float64)
    for token, (mul, add) in row.edits.items():
        values[token] = (values[token] / mul if values[token] > 0 else values[token] * mul) + add
    if row.allowed is not None:
        values[[token for token in range(len(values)) if token not in row.allowed]] = -np.inf
    return values


def softmax(values: Float64) -> Float64:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def naive_distribution(logits: NDArray[np.float32], row: Row) -> tuple[Float64, float]:
    """[V] what a row with a temperature draws from, and how near the nearest filter decision was."""
    p = softmax(edited_logits(logits, row) / np.float64(np.float32(row.temperature)))
    margin = np.inf
    if 0 < row.top_k < len(p):
        p = np.where(p >= np.sort(p)[-row.top_k], p, 0)
        p /= p.sum()
    if row.top_p < 1:
        above = np.array([p[p > value].sum() for value in p])  # the mass of what is more likely
        top_p = np.float64(np.float32(row.top_p))
        margin = min(margin, np.abs(above[above > 0] - top_p).min(initial=np.inf))
        p = np.where((above < top_p) | (p == p.max()), p, 0)
        p /= p.sum()
    if row.min_p > 0:
        floor = np.float64(np.float32(row.min_p)) * p.max()
        margin = min(margin, np.abs(p[p < p.max()] - floor).min(initial=np.inf))
        p = np.where((p >= floor) | (p == p.max()), p, 0)
        p /= p.sum()
    return p, float(margin)


def check_draw(p: Float64, uniform: float, token: int) -> None:
    """The token's cumulative probability is the first above the uniform."""
    ends = np.cumsum(p)
    assert p[token] > 0, f"token {token} has no probability"
    assert ends[token] > uniform - CLOSE
    assert ends[token] - p[token] <= uniform + CLOSE


probabilities = st.integers(0, 2**24 - 1).map(lambda number: number / 2**24)  # as the core makes them


@st.composite
def problems(draw: st.DrawFn) -> tuple[NDArray[np.float32], list[Row]]:
    vocab_size = draw(st.integers(2, 70))
    num_rows = draw(st.integers(1, 5))
    quarters = st.lists(st.integers(-40, 40), min_size=vocab_size, max_size=vocab_size)  # many equal logits
    logits = np.array([draw(quarters) for _ in range(num_rows)], np.float32) / 4
    tokens = st.integers(0, vocab_size - 1)
    muls = st.sampled_from([1.0, 1.25, 0.5])
    adds = st.sampled_from([0.0, 2.5, -100.0, float("-inf")])
    rows = [
        Row(
            temperature=draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0])),
            top_k=draw(st.integers(0, vocab_size + 3)),
            top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])),
            min_p=draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
            uniform=(draw(probabilities), draw(probabilities)),
            draws=draw(st.booleans()),
            target=draw(st.one_of(st.just(NO_TARGET), tokens)),
            edits=draw(st.dictionaries(tokens, st.tuples(muls, adds), max_size=4)),
            allowed=draw(st.one_of(st.none(), st.frozensets(tokens, min_size=1))),
        )
        for _ in range(num_rows)
    ]
    return logits, rows


@settings(max_examples=300, deadline=None)
@given(problems())
def test_every_row_is_what_the_naive_sampler_says(problem: tuple[NDArray[np.float32], list[Row]]) -> None:
    logits, rows = problem
    before = logits.copy()
    num_rows, vocab_size = logits.shape
    output = sample_rows(
        logits, columns(rows, vocab_size, num_logprobs=2), np.arange(num_rows, dtype=np.int32), num_rows
    )
    assert np.array_equal(logits, before), "the logits are the caller's"
    for index, row in enumerate(rows):
        raw = np.log(softmax(logits[index].astype(np.float64)))
        edited = edited_logits(logits[index], row)
        if edited.max() == -np.inf:
            assert not output.is_finite[index]
            continue
        token = int(output.token_ids[index])
        scored = token if row.target == NO_TARGET else row.target
        if row.draws or row.target != NO_TARGET:
            assert output.logprobs[index] == pytest.approx(raw[scored], abs=1e-4)
            assert output.ranks[index] == 1 + (raw > raw[scored]).sum()
        assert output.num_tokens[index] == row.draws
        if row.draws:
            check_token(logits[index], row, edited, token)


def check_token(logits: NDArray[np.float32], row: Row, edited: Float64, token: int) -> None:
    if row.temperature == 0:
        assert token == edited.argmax()
        return
    p, margin = naive_distribution(logits, row)
    assume(margin > CLOSE)
    if row.target == NO_TARGET:
        check_draw(p, row.uniform[0], token)
        return
    assume(abs(row.uniform[1] - p[row.target]) > CLOSE)
    if row.uniform[1] < p[row.target]:
        assert token == row.target
    else:
        p[row.target] = 0
        check_draw(p / p.sum(), row.uniform[0], token)


def draw_on_grid(logits: NDArray[np.float32], row: Row, count: int) -> NDArray[np.int64]:
    """How often each token is drawn over evenly spaced uniforms."""
    rows = [replace(row, uniform=((i + 0.5) / count, 0.0)) for i in range(count)]
    output = sample_rows(
        np.tile(logits, (count, 1)), columns(rows, len(logits)), np.arange(count, dtype=np.int32), count
    )
    return np.bincount(output.token_ids, minlength=len(logits))


@pytest.mark.parametrize(
    "row",
    [
        Row(temperature=1.0),
        Row(temperature=0.7, top_k=9),
        Row(temperature=1.3, top_p=0.8),
        Row(temperature=1.0, min_p=0.1),
        Row(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02),
    ],
    ids=str,
)
def test_each_token_gets_exactly_its_share_of_the_uniforms(row: Row) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 600).astype(np.float32)  # more than one chunk
    p, _ = naive_distribution(logits, row)
    counts = draw_on_grid(logits, row, 4096)
    assert np.abs(counts - 4096 * p).max() < 1.01


def test_draft_tokens_leave_the_distribution_as_it_is() -> None:
    """Accept with p(t), else draw from the rest: over both uniforms every token keeps its p."""
    logits, size = np.array([0.3, 1.0, -0.5, 0.9, -1.2], np.float32), 128
    grid = (np.arange(size) + 0.5) / size
    rows = [Row(temperature=1.0, target=1, uniform=(u, v)) for u in grid for v in grid]
    output = sample_rows(
        np.tile(logits, (len(rows), 1)),
        columns(rows, 5),
        np.arange(len(rows), dtype=np.int32),
        len(rows),
    )
    share = np.bincount(output.token_ids, minlength=5) / len(rows)
    assert share == pytest.approx(naive_distribution(logits, rows[0])[0], abs=2 / size)


def test_a_sequence_ends_with_the_first_draft_that_is_refused() -> None:
    """Three sequences: two drafts taken, first refused, one scored row and a plain draw."""
    logits = np.eye(8, dtype=np.float32)[[1, 2, 3, 4, 5, 6, 7, 0]] * 5
    rows = [
        *(Row(target=1), Row(target=2), Row()),
        *(Row(target=1), Row(target=5), Row()),
        *(Row(draws=False, target=3), Row()),
    ]
    row_seqs = np.array([0, 0, 0, 1, 1, 1, 2, 2], np.int32)
    output = sample_rows(logits, columns(rows, 8), row_seqs, 3)
    assert output.num_tokens.tolist() == [3, 1, 1]
    assert output.token_ids[[0, 1, 2, 3, 7]].tolist() == [1, 2, 3, 4, 0]


def test_sequences_without_rows_count_no_tokens() -> None:
    draws, refused = np.ones(2, np.bool_), np.zeros(2, np.bool_)
    assert count_tokens(draws, refused, np.array([1, 3], np.int32), 5).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_draws_token_0_and_leaves_the_others_alone(
    bad: float, temperature: float
) -> None:
    logits = np.random.default_rng(0).normal(0, 1, (3, 40)).astype(np.float32)
    row_seqs = np.arange(3, dtype=np.int32)
    wishes = columns([Row(temperature=temperature, uniform=(0.4, 0.4))] * 3, 40, num_logprobs=3)
    healthy = sample_rows(logits, wishes, row_seqs, 3)
    logits[1, 7] = bad
    output = sample_rows(logits, wishes, row_seqs, 3)
    assert output.is_finite.tolist() == [True, False, True]
    assert output.token_ids[1] == 0
    assert output.num_tokens.tolist() == [1, 1, 1]
    assert output.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert output.logprobs[[0, 2]].tolist() == healthy.logprobs[[0, 2]].tolist()


def test_a_row_that_is_not_finite_ends_its_drafts() -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[0, 2] = logits[2, 1] = 3
    logits[1] = np.nan
    rows = [Row(target=2), Row(target=0), Row()]
    output = sample_rows(logits, columns(rows, 4), np.zeros(3, np.int32), 1)
    assert output.num_tokens.tolist() == [2]
    assert output.is_finite.tolist() == [True, False, True]


def test_a_row_without_an_allowed_token_is_not_finite() -> None:
    row = Row(temperature=1.0, allowed=frozenset())
    output = sample_rows(np.zeros((1, 40), np.float32), columns([row], 40), np.zeros(1, np.int32), 1)
    assert not output.is_finite[0]


def test_top_tokens_are_raw_and_ordered_by_id_among_equals() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 0.0, 3.0, 2.0]], np.float32)
    row = Row(temperature=0.5, edits={1: (1.0, -50.0)}, uniform=(0.9, 0.0))
    output = sample_rows(logits, columns([row], 6, num_logprobs=4), np.zeros(1, np.int32), 1)
    raw = np.log(softmax(logits[0].astype(np.float64)))
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    assert output.top_ids[0].tolist() == [1, 2, 4, 5]
    assert output.top_logprobs[0] == pytest.approx(raw[[1, 2, 4, 5]], abs=1e-6)


def test_many_equals_are_ordered_by_id_too() -> None:
    logits = np.tile(np.array([2.0, 3.0, 1.0], np.float32), 300)[None]
    output = sample_rows(logits, columns([Row()], 900, num_logprobs=20), np.zeros(1, np.int32), 1)
    assert output.top_ids is not None
    assert output.top_ids[0].tolist() == list(range(1, 60, 3))


def test_extra_tokens_get_their_raw_logprobs() -> None:
    logits = np.random.default_rng(5).normal(0, 3, (2, 30)).astype(np.float32)
    extra = np.array([[3, 29], [0, 3]], np.int32)
    output = sample_rows(
        logits,
        columns([Row(), Row(temperature=1.0)], 30, extra_ids=extra),
        np.arange(2, dtype=np.int32),
        2,
    )
    raw = np.log(np.stack([softmax(row.astype(np.float64)) for row in logits]))
    assert output.extra_logprobs is not None
    assert output.extra_logprobs == pytest.approx(np.take_along_axis(raw, extra, 1), abs=1e-5)


@pytest.mark.parametrize("cuts", [[], [1], [3, 4], [1, 2, 3, 4, 5, 6]])
def test_pieces_give_what_the_whole_gives(cuts: list[int]) -> None:
    generator = np.random.default_rng(8)
    logits = generator.normal(0, 2, (7, 90)).astype(np.float32)
    rows = [
        Row(
            temperature=float(index % 3),
            top_p=0.9,
            uniform=(float(generator.random()), float(generator.random())),
            target=int(logits[index].argmax()) if index in (1, 2, 4) else NO_TARGET,
            edits={index: (1.5, 1.0), 80: (1.0, float("-inf"))} if index % 2 else {},
            allowed=frozenset(range(index, 90, 2)) if index in (0, 5) else None,
        )
        for index in range(7)
    ]
    wishes = columns(rows, 90, num_logprobs=3, extra_ids=np.tile(np.array([4, 5], np.int32), (7, 1)))
    row_seqs = np.array([0, 1, 1, 1, 2, 2, 3], np.int32)
    whole = sample_rows(logits, wishes, row_seqs, 4)
    pieces = sample_pieces(np.split(logits, cuts), wishes, row_seqs, 4)
    for name in ("token_ids", "num_tokens", "is_finite", "logprobs", "ranks", "top_ids", "extra_logprobs"):
        assert np.array_equal(getattr(pieces, name), getattr(whole, name)), name


def test_a_batch_without_rows_is_empty() -> None:
    output = sample_rows(np.empty((0, 9), np.float32), columns([], 9), np.empty(0, np.int32), 2)
    assert output.num_tokens.tolist() == [0, 0]
    assert output.token_ids.shape == (0,)


def test_equal_logits_stay_or_go_together() -> None:
    logits = np.array([2.0, 2.0, 2.0, 1.0], np.float32)
    for row in (
        Row(temperature=1.0, top_k=1),
        Row(temperature=1.0, top_p=0.1),
        Row(temperature=1.0, min_p=1),
    ):
        assert draw_on_grid(logits, row, 300).tolist() == [100, 100, 100, 0]
