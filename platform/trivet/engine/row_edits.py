"""The sparse edits of one sequence's logits, kept up to date token by token.

Penalties count once, when a token comes; a step then only hands out what stands here. Definitions are
vLLM's: presence and frequency look at the output, repetition at the prompt too (Keskar et al. 2019, CTRL).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32
    from trivet.engine.sequence import Sequence

    Row = tuple[Int32, Float32, Float32]  # ids, factors, summands

FIRST_CAPACITY = 32  # entries; doubled when they are used up
MAX_FACTOR = 1e30  # and its inverse the least: a logit of up to 1e8 stays finite in float32


def wants_edits(sequence: Sequence) -> bool:
    """Whether any of its rows may carry an edit."""
    params = sequence.params
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1
        or params.logit_bias
        or params.min_tokens
        or sequence.bad_word_ids
    )


class RowEdits:
    """Entries of one sequence, one for each token that is not left as it is.

    A new token costs O(1); a row costs a copy of the entries, of which there are at most as many as the
    sequence has distinct tokens.
    """

    def __init__(self, sequence: Sequence, num_tokens: int) -> None:
        """Args: num_tokens: the contract's V; other tokens of a prompt have no logit."""
        params = sequence.params
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._repetition = min(max(params.repetition_penalty, 1 / MAX_FACTOR), MAX_FACTOR)
        self._penalises = bool(self._presence or self._frequency or self._repetition != 1)
        self._stop_ids = tuple(token for token in sequence.stop_ids if token < num_tokens)
        self._num_prompt = sequence.num_prompt_tokens
        self._min_total = self._num_prompt + params.min_tokens
        self._bias = dict(params.logit_bias or {})  # 0.5 ms of 50,000
        self._endings: dict[tuple[int, ...], set[int]] = {}  # of bad words: what must not follow
        for *before, last in sequence.bad_word_ids:
            if before:
                self._endings.setdefault(tuple(before), set()).add(last)
            else:
                self._bias[last] = -math.inf
        self._lengths = sorted({len(before) for before in self._endings})

        self._size = 0
        self._ids: Int32 = np.zeros(FIRST_CAPACITY, np.int32)
        self._mul: Float32 = np.ones(FIRST_CAPACITY, np.float32)
        self._add: Float32 = np.zeros(FIRST_CAPACITY, np.float32)
        self._base: Int32 = self._ids[:0]  # ascending: the tokens of the first entries
        self._place: dict[int, int] = {}  # of a token's entry, where it is not of these or was sought before
        self._counts: dict[int, int] = {}  # of output tokens
        self._hidden: list[tuple[int, float]] = []  # place and value of what this row forbids as well
        self._num_seen = self._num_prompt
        penalised = sequence.prompt_token_ids if self._repetition != 1 else ()
        self._lay_base(np.asarray(penalised, np.int32), num_tokens)

    def row(self, token_ids: list[int]) -> Row:
        """Ids, factors and summands for the token after `token_ids` (prompt and output).

        Views: the next call changes them.
        """
        for place, value in self._hidden:
            self._add[place] = value
        self._hidden.clear()
        if self._penalises:
            for token in token_ids[self._num_seen :]:
                self._count(token)
        self._num_seen = len(token_ids)
        size = self._size
        for token in sorted(set(self._forbidden(token_ids))):
            size = self._forbid(token, size)
        return self._ids[:size], self._mul[:size], self._add[:size]

    def _lay_base(self, penalised: Int32, num_tokens: int) -> None:
        """The prompt's tokens and the biases are the first entries; arrays, for there may be 50,000 of each.

        Of so many biases: 3 ms, where one entry after the other took 50.
        """
        count = len(self._bias)
        biased = np.fromiter(self._bias.keys(), np.int32, count)
        penalised = _distinct(penalised[penalised < num_tokens])
        self._base = _distinct(np.concatenate((penalised, biased)))
        self._size = len(self._base)
        self._reserve(self._size)
        self._ids[: self._size], self._mul[: self._size], self._add[: self._size] = self._base, 1.0, 0.0
        self._mul[np.searchsorted(self._base, penalised)] = self._repetition
        biases = np.fromiter(self._bias.values(), np.float32, count)
        self._add[np.searchsorted(self._base, biased)] = biases

    def _find(self, token: int) -> int | None:
        """The token's place, if it has one."""
        place = self._place.get(token)
        if place is None:
            at = int(np.searchsorted(self._base, token))
            if at < len(self._base) and self._base[at] == token:
                place = self._place[token] = at
        return place

    def _count(self, token: int) -> None:
        """Take in one output token."""
        count = self._counts[token] = self._counts.get(token, 0) + 1
        place = self._entry(token)
        self._mul[place] = self._repetition
        self._add[place] = self._bias.get(token, 0.0) - self._presence - self._frequency * count

    def _forbidden(self, token_ids: list[int]) -> Iterator[int]:
        """What must not come now: an end before `min_tokens`, the last token of a bad word."""
        if len(token_ids) < self._min_total:
            yield from self._stop_ids
        for length in self._lengths:
            if len(token_ids) - self._num_prompt < length:
                return  # bad words are sought in the output only, as vLLM does
            yield from self._endings.get(tuple(token_ids[-length:]), ())

    def _forbid(self, token: int, size: int) -> int:
        """For this row only. Returns the number of entries."""
        place = self._find(token)
        if place is None:  # behind the entries that stay
            self._reserve(size + 1)
            self._ids[size], self._mul[size], self._add[size] = token, 1.0, -math.inf
            return size + 1
        self._hidden.append((place, float(self._add[place])))
        self._add[place] = -math.inf
        return size

    def _entry(self, token: int) -> int:
        """The token's place, made where there is none."""
        place = self._find(token)
        if place is None:
            place = self._place[token] = self._size
            self._reserve(place + 1)
            self._ids[place], self._mul[place], self._add[place] = token, 1.0, 0.0
            self._size += 1
        return place

    def _reserve(self, size: int) -> None:
        if size > len(self._ids):
            more = 2 * size - len(self._ids)
            self._ids = np.concatenate((self._ids, np.zeros(more, np.int32)))
            self._mul = np.concatenate((self._mul, np.ones(more, np.float32)))
            self._add = np.concatenate((self._add, np.zeros(more, np.float32)))


def _distinct(token_ids: Int32) -> Int32:
    """Ascending. (`np.unique` hashes: 5 ms for 50,000, and this 0.3.)"""
    ordered = np.sort(token_ids, kind="stable")
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def joined(rows: Iterable[Row | None]) -> tuple[Int32, Int32, Float32, Float32]:
    """The contract's `edit_start` [R + 1], `edit_ids`, `edit_mul` and `edit_add` [N]; None: no edit."""
    listed = list(rows)
    start = np.zeros(len(listed) + 1, np.int32)
    np.cumsum([0 if row is None else len(row[0]) for row in listed], out=start[1:])
    ids, mul, add = zip(*(row for row in listed if row is not None), strict=True)
    return start, np.concatenate(ids), np.concatenate(mul), np.concatenate(add)
