"""The suite's row-by-row sampler and the engine's reference sampler read the contract alike."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract_suite.sampling_oracle import (
    RowSampling,
    draw,
    draw_sequence,
    edited,
    middle_of,
    probabilities,
)
from trivet.contract_suite.steps import build_sampling
from trivet.engine.sampler import sample_rows

VOCAB = 40


def random_row(generator: np.random.Generator, target: int = -1) -> RowSampling:
    choose = generator.choice
    edits = tuple(
        (int(token), float(generator.uniform(0.5, 2)), float(choose([0.0, 1.5, -2.0, -np.inf])))
        for token in choose(VOCAB, size=choose([0, 4]), replace=False)
    )
    allowed = tuple(int(token) for token in choose(VOCAB, size=15, replace=False))
    return RowSampling(
        target=target,
        temperature=float(choose([0.0, 0.5, 1.0, 2.0])),
        top_k=int(choose([0, 1, 5, 100])),
        top_p=float(choose([1.0, 0.9, 0.3, 0.0])),
        min_p=float(choose([0.0, 0.1, 1.0])),
        uniform=(float(generator.random()), float(generator.random())),
        edits=edits,
        allowed=allowed if generator.random() < 0.4 else None,
    )


@pytest.mark.parametrize("seed", range(5))
def test_both_samplers_draw_the_same_tokens(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((200, VOCAB)) * 3).astype(np.float32)
    rows = [random_row(generator) for _ in logits]
    sampling = build_sampling(rows, VOCAB)
    output = sample_rows(logits, sampling, np.arange(200, dtype=np.int32), 200)
    wanted = [draw(row_logits, row).token_id for row_logits, row in zip(logits, rows, strict=True)]
    # A number within rounding of a limit may fall on either side: 1 row in thousands.
    assert np.mean(output.token_ids != np.array(wanted)) <= 0.005


@pytest.mark.parametrize("seed", range(5))
def test_both_samplers_end_a_sequence_at_the_same_draft(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((4, VOCAB)) * 3).astype(np.float32)
    for _ in range(40):
        rows = [random_row(generator, target=int(row.argmax())) for row in logits[:3]]
        rows.append(random_row(generator))
        output = sample_rows(logits, build_sampling(rows, VOCAB), np.zeros(4, np.int32), 1)
        assert output.token_ids[: output.num_tokens[0]].tolist() == draw_sequence(list(logits), rows)


def test_edits_come_before_the_mask_and_the_mask_before_the_filters() -> None:
    logits = np.array([4.0, -1.0, 3.0, 2.0])
    row = RowSampling(
        temperature=1.0, top_k=1, edits=((0, 2.0, 0.0), (1, 2.0, 0.0), (3, 1.0, 9.0)), allowed=(0, 1, 2)
    )
    assert edited(logits, row).tolist() == [2.0, -2.0, 3.0, -np.inf]
    assert probabilities(logits, row).tolist() == [0, 0, 1, 0]


def test_the_middle_of_a_share_draws_its_token() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4]))
    row = RowSampling(temperature=1.0)
    assert [middle_of(logits, row, token) for token in range(4)] == pytest.approx([0.05, 0.2, 0.45, 0.8])
    assert [draw(logits, row.at(middle_of(logits, row, token))).token_id for token in range(4)] == [
        0,
        1,
        2,
        3,
    ]


def test_a_refused_draft_is_never_drawn_again() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.7]))
    row = RowSampling(temperature=1.0, target=2, uniform=(0.99, 0.71))
    assert draw(logits, row).token_id == 1
    assert draw(logits, row).is_end
    assert draw(logits, row.at(0.99, 0.69)).token_id == 2
