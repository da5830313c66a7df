"""Edits that are kept token by token, against the definition applied to whole histories."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from trivet.engine.row_edits import RowEdits, joined, wants_edits
from trivet.engine.sequence import Sequence
from trivet.sampling_params import SamplingParams

V = 80


def make(prompt: list[int], bad_words: list[tuple[int, ...]] | None = None, **params: Any) -> Sequence:
    sequence = Sequence("r", prompt, SamplingParams(**params), bad_word_ids=bad_words or ())
    sequence.stop_ids = frozenset({2, 39, 500})
    return sequence


def by_definition(sequence: Sequence) -> dict[int, tuple[float, float]]:
    """Factor and summand of every token, from the whole history; only those that change something."""
    params, output = sequence.params, sequence.output_token_ids
    counts = Counter(output)
    everything = {token for token in (*sequence.prompt_token_ids, *output) if token < V}
    found = {}
    for token in range(V):
        mul = params.repetition_penalty if token in everything else 1.0
        add = (params.logit_bias or {}).get(token, 0.0)
        if counts[token]:
            add -= params.presence_penalty + params.frequency_penalty * counts[token]
        if token in sequence.stop_ids and len(output) < params.min_tokens:
            add = -np.inf
        for *before, last in sequence.bad_word_ids:
            if last == token and output[len(output) - len(before) :] == before and len(output) >= len(before):
                add = -np.inf
        if (mul, add) != (1.0, 0.0):
            found[token] = (pytest.approx(mul), pytest.approx(add, abs=1e-5))
    return found


def entries(edits: RowEdits, sequence: Sequence) -> dict[int, tuple[float, float]]:
    ids, mul, add = edits.row(sequence.token_ids)
    assert len(set(ids.tolist())) == len(ids), "the contract wants distinct ids in a row"
    listed = zip(ids.tolist(), mul.tolist(), add.tolist(), strict=True)
    return {token: (m, a) for token, m, a in listed if (m, a) != (1.0, 0.0)}


def test_every_history_gives_what_the_definition_says() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        prompt = rng.choices(range(V + 3), k=rng.randint(1, 90))  # a prompt may have ids without a logit
        sequence = make(
            prompt,
            [tuple(rng.choices(range(6), k=rng.randint(1, 3))) for _ in range(rng.randint(0, 5))],
            presence_penalty=rng.choice([0.0, 1.5, -0.5]),
            frequency_penalty=rng.choice([0.0, 0.25]),
            repetition_penalty=rng.choice([1.0, 1.3, 0.7]),
            logit_bias=rng.choice([None, {3: 5.0, 2: -1.0, 39: 100.0}]),
            min_tokens=rng.choice([0, 4]),
            max_tokens=100,
        )
        edits = RowEdits(sequence, V)
        for _ in range(40):
            assert entries(edits, sequence) == by_definition(sequence)
            sequence.token_ids += rng.choices(range(6 if rng.random() < 0.7 else V), k=rng.randint(1, 2))
        assert entries(RowEdits(sequence, V), sequence) == by_definition(sequence), "after a preemption"


def test_presence_and_frequency_do_not_see_the_prompt() -> None:
    sequence = make([7, 7, 7], presence_penalty=2.0, frequency_penalty=1.0)
    edits = RowEdits(sequence, V)
    assert entries(edits, sequence) == {}
    sequence.token_ids += [7, 7]
    assert entries(edits, sequence) == {7: (1.0, -4.0)}


def test_a_tokens_count_is_taken_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work that grows with the prompt or the output is done again in a step."""
    sequence = make(list(range(30)) * 50, repetition_penalty=1.1, frequency_penalty=0.1)
    edits = RowEdits(sequence, V)
    taken: list[int] = []
    count = RowEdits._count
    monkeypatch.setattr(RowEdits, "_count", lambda self, token: (taken.append(token), count(self, token)))
    for token in (3, 4, 5):
        sequence.token_ids.append(token)
        edits.row(sequence.token_ids)
    assert taken == [3, 4, 5]


def test_who_asks_for_nothing_has_no_edits() -> None:
    assert not wants_edits(make([1], temperature=0.3, stop=("x",), allowed_token_ids=(4,)))
    for field in ({"min_tokens": 1}, {"logit_bias": {1: 1.0}}, {"repetition_penalty": 0.9}):
        assert wants_edits(make([1], **field))
    assert wants_edits(make([1], [(4,)]))


def test_rows_are_joined_in_order_and_rows_without_edits_are_empty() -> None:
    one, two = make([1], logit_bias={3: 1.0}), make([1], logit_bias={4: 2.0, 5: 3.0})
    rows = [RowEdits(made, V).row(made.token_ids) for made in (one, two)]
    start, ids, mul, add = joined([None, rows[0], None, rows[1]])
    assert start.tolist() == [0, 0, 1, 1, 3]
    assert ids.tolist() == [3, 4, 5]
    assert mul.tolist() == [1, 1, 1]
    assert add.tolist() == [1, 2, 3]
