"""The sampler, column by column, against the row-by-row oracle on the runner's own logits."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract_suite.driver import drawing_work
from trivet.contract_suite.own_logits import drawing_sequence, own_logits
from trivet.contract_suite.sampling_oracle import (
    RowSampling,
    edited,
    middle_of,
    probabilities,
)
from trivet.contract_suite.subject import Subject

NEG_INF = float("-inf")
EDITS = ((30, 1.5, 0.0), (31, 0.5, 0.0), (32, 1.0, 3.0), (33, 1.0, NEG_INF), (60, 1.2, -0.7))
ALLOWED = tuple(range(25, 150, 3))

COLUMNS = {
    "temperature_1": RowSampling(temperature=1.0),
    "temperature_low": RowSampling(temperature=0.3),
    "temperature_high": RowSampling(temperature=3.0),
    "top_k": RowSampling(temperature=1.0, top_k=7),
    "top_k_of_one": RowSampling(temperature=1.0, top_k=1),
    "top_k_beyond_the_vocabulary": RowSampling(temperature=1.0, top_k=100_000),
    "top_p": RowSampling(temperature=1.0, top_p=0.7),
    "top_p_zero": RowSampling(temperature=1.0, top_p=0.0),
    "min_p": RowSampling(temperature=1.0, min_p=0.2),
    "min_p_one": RowSampling(temperature=1.0, min_p=1.0),
    "top_k_then_top_p": RowSampling(temperature=1.5, top_k=6, top_p=0.6),
    "top_p_then_min_p": RowSampling(temperature=1.5, top_p=0.9, min_p=0.3),
    "all_filters": RowSampling(temperature=1.2, top_k=20, top_p=0.9, min_p=0.05),
    "edits": RowSampling(temperature=1.0, edits=EDITS),
    "mask": RowSampling(temperature=1.0, allowed=ALLOWED),
    "mask_of_one": RowSampling(temperature=1.0, allowed=(77,)),
    "everything": RowSampling(
        temperature=0.8, top_k=15, top_p=0.95, min_p=0.02, edits=EDITS, allowed=ALLOWED
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_draw_follows_its_columns(subject: Subject, name: str) -> None:
    """Every token that is left, likely or not, is drawn in the middle of its share; no other ever is."""
    driver = subject.driver()
    row = COLUMNS[name]
    for seed in (1, 2):
        sequence = drawing_sequence(driver, seed)
        logits = own_logits(subject, driver, sequence)
        shares = probabilities(logits, row)
        least = 1e-3 if subject.is_exact else 0.01
        left = [int(token) for token in np.argsort(-shares)[:8] if shares[token] > least]
        assert left, "the case has no token to draw"
        for token in left:
            step, output = driver.run([drawing_work(sequence, row.at(middle_of(logits, row, token)))])
            assert int(output.token_ids[0]) == token
            driver.rewind(step)
        for uniform in (0.0, 1 - 2**-24):
            step, output = driver.run([drawing_work(sequence, row.at(uniform))])
            assert shares[output.token_ids[0]] > (0 if subject.is_exact else -1)
            driver.rewind(step)
        driver.drop(sequence)


def test_a_batch_of_unlike_rows_keeps_its_columns_apart(subject: Subject) -> None:
    """All columns at once, a row each: edits and masks on some, none on others."""
    driver = subject.driver()
    names = ["temperature_1", "mask", "top_k", "edits", "everything", "top_p", "mask_of_one", "min_p"]
    sequences = [drawing_sequence(driver, seed) for seed in range(len(names))]
    works, wanted = [], []
    for sequence, name in zip(sequences, names, strict=True):
        logits = own_logits(subject, driver, sequence)
        token = int(probabilities(logits, COLUMNS[name]).argmax())
        works.append(drawing_work(sequence, COLUMNS[name].at(middle_of(logits, COLUMNS[name], token))))
        wanted.append(token)
    greedy = drawing_sequence(driver, 50)
    greedy_logits = own_logits(subject, driver, greedy)
    driver.run([*works, drawing_work(greedy, RowSampling())])
    assert [sequence.token_ids[-1] for sequence in sequences] == wanted
    assert greedy.token_ids[-1] == int(greedy_logits.argmax())


@pytest.mark.parametrize(
    "row",
    [
        RowSampling(edits=EDITS),
        RowSampling(allowed=ALLOWED),
        RowSampling(edits=((44, 1.0, 1000.0), (45, 1.0, 2000.0)), allowed=(44, 46)),
        RowSampling(top_k=3, top_p=0.5, min_p=0.5, uniform=(0.99, 0.99)),
    ],
    ids=["edits", "mask", "edits_then_mask", "filters_change_nothing"],
)
def test_temperature_zero_takes_the_largest_edited_and_masked_logit(
    subject: Subject, row: RowSampling
) -> None:
    """Whatever the filters and the random number say."""
    driver = subject.driver()
    for seed in range(1, 5):
        sequence = drawing_sequence(driver, seed)
        logits = edited(own_logits(subject, driver, sequence), row)
        best, second = np.sort(logits)[[-1, -2]][::1]
        driver.run([drawing_work(sequence, row)])
        if subject.is_exact or abs(best - second) > 0.3:
            assert sequence.token_ids[-1] == int(logits.argmax())
        driver.drop(sequence)


def test_the_lowest_id_wins_among_equals(subject: Subject) -> None:
    """Two tokens that edits raise to the same huge logit."""
    driver = subject.driver()
    for pair in ((90, 91), (35, 140)):
        sequence = drawing_sequence(driver)
        row = RowSampling(edits=tuple((token, 1.0, 1e30) for token in pair))
        driver.run([drawing_work(sequence, row)])
        assert sequence.token_ids[-1] == min(pair)
        driver.drop(sequence)


def test_a_tiny_temperature_is_nearly_greedy_and_finite(subject: Subject) -> None:
    """1e-6 overflows nothing."""
    driver = subject.driver()
    sequence = drawing_sequence(driver)
    logits = own_logits(subject, driver, sequence)
    # Of equals, which are common in bf16, a small number takes the first.
    _, output = driver.run([drawing_work(sequence, RowSampling(temperature=1e-6, uniform=(0.1, 0.5)))])
    assert output.is_finite[0]
    assert sequence.token_ids[-1] == int(logits.argmax())


def test_an_edit_by_a_factor_shrinks_positive_logits_and_grows_negative_ones(subject: Subject) -> None:
    """Repetition penalty: l / mul above 0, l * mul below."""
    driver = subject.driver()
    sequence = drawing_sequence(driver, 3)
    logits = own_logits(subject, driver, sequence)
    high, low = int(logits.argmax()), int(logits.argmin())
    row = RowSampling(
        temperature=1.0,
        edits=((high, 1.8, 0.0), (low, 1.8, 0.0)),
        allowed=(high, low, *np.argsort(-logits)[1:4].tolist()),
    )
    shares = probabilities(logits, row)
    for token in (high, int(np.argsort(-logits)[1])):
        step, output = driver.run([drawing_work(sequence, row.at(middle_of(logits, row, token)))])
        assert int(output.token_ids[0]) == token
        driver.rewind(step)
    assert shares[low] < 1e-3
