"""Draft tokens: rows with a target are taken or refused exactly as the model's distribution says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import NO_TARGET
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.own_logits import drawing_sequence, own_logits
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling, draw_sequence, probabilities
from trivet.contract_suite.steps import Work
from trivet.contract_suite.subject import Subject


def _drafted(
    subject: Subject, driver: Driver, drafts: list[int], row: RowSampling, seed: int = 1
) -> tuple[Work, list[NDArray[np.float64]]]:
    """A sequence with drafts behind it, and the runner's own logits at each of their rows."""
    sequence = drawing_sequence(driver, seed)
    logits = []
    for count in range(len(drafts) + 1):
        probe = driver.add([*sequence.token_ids, *drafts[:count]])
        logits.append(own_logits(subject, driver, probe))
        driver.drop(probe)
    rows = tuple(replace(row, target=token) for token in drafts)
    work = Work(sequence, 1 + len(drafts), tuple(range(1 + len(drafts))), (*rows, row), tuple(drafts))
    return work, logits


def _greedy_drafts(subject: Subject, driver: Driver, count: int) -> list[int]:
    sequence = driver.add(random_prompt(9, 1))
    (tokens,) = driver.generate([sequence], count)
    driver.drop(sequence)
    return tokens


@pytest.mark.parametrize("num_right", range(4))
def test_greedy_drafts_count_up_to_the_first_wrong_one(subject: Subject, num_right: int) -> None:
    """Right ones, then the runner's own token in place of the wrong one, or one more after the last."""
    driver = subject.driver()
    right = _greedy_drafts(subject, driver, 4)
    drafts = right[:3]
    if num_right < 3:
        drafts[num_right] = drafts[num_right] + 1 if drafts[num_right] < 150 else 20
    sequence = drawing_sequence(driver)
    rows = tuple(RowSampling(target=token) for token in drafts)
    work = Work(sequence, 4, (0, 1, 2, 3), (*rows, RowSampling()), tuple(drafts))
    _, output = driver.run([work])
    assert output.num_tokens[0] == num_right + 1
    assert sequence.token_ids[9:] == right[: num_right + 1]
    driver.generate([sequence], 3)
    again = driver.add(sequence.token_ids[:9])
    assert driver.generate([again], len(sequence.token_ids) - 9)[0] == sequence.token_ids[9:]


def test_a_sampled_draft_is_taken_with_its_own_probability(subject: Subject) -> None:
    """Accepted just below p(t) of the filtered distribution, refused just above."""
    driver = subject.driver()
    row = RowSampling(temperature=1.2, top_k=10)
    target = int(np.argsort(-probabilities(_first_logits(subject, driver), row))[1])
    work, logits = _drafted(subject, driver, [target], row)
    chance = float(probabilities(logits[0], row)[target])
    margin = 1e-3 if subject.is_exact else 0.02
    for second, is_taken in ((max(0.0, chance - margin), True), (chance + margin, False)):
        rows = tuple(replace(one, uniform=(0.5, second)) for one in work.sampling)
        step, output = driver.run([replace(work, sampling=rows)])
        assert output.num_tokens[0] == (2 if is_taken else 1)
        assert (int(output.token_ids[0]) == target) == is_taken
        driver.rewind(step)


def test_a_refused_draft_is_replaced_by_a_draw_from_what_is_left(subject: Subject) -> None:
    """From p without t, renormalised, by the row's first random number."""
    driver = subject.driver()
    row = RowSampling(temperature=1.0, top_k=6)
    target = int(_first_logits(subject, driver).argmax())
    work, logits = _drafted(subject, driver, [target], row)
    others = probabilities(logits[0], row)
    others[target] = 0
    others /= others.sum()
    for token in np.flatnonzero(others > 0.02):
        first = float(others[:token].sum() + others[token] / 2)
        refused = row.at(first, 1 - 2**-24)
        rows = (replace(refused, target=target), refused)
        step, output = driver.run([replace(work, sampling=rows)])
        assert output.num_tokens[0] == 1
        assert int(output.token_ids[0]) == int(token)
        driver.rewind(step)


def test_drafts_of_several_sequences_end_each_for_itself(subject: Subject) -> None:
    """Random targets and numbers: what counts is what the oracle draws, sequence by sequence."""
    driver = subject.driver()
    generator = np.random.default_rng(5)
    works, wanted = [], []
    for seed in range(5):
        row = RowSampling(temperature=1.0, top_p=0.95)
        drafts = _greedy_drafts(subject, driver, 1 + seed % 3)
        work, logits = _drafted(subject, driver, drafts, row, seed)
        rows = [replace(one, uniform=tuple(generator.random(2))) for one in work.sampling]
        if not subject.is_exact:
            rows = [_clear(one, row_logits) for one, row_logits in zip(rows, logits, strict=True)]
        works.append(replace(work, sampling=tuple(rows)))
        wanted.append(draw_sequence(logits, rows))
    driver.run(works)
    assert [work.sequence.token_ids[9:] for work in works] == wanted


def _clear(row: RowSampling, logits: NDArray[np.float64]) -> RowSampling:
    """Random numbers far from every limit: a likely draft is taken, any other clearly refused."""
    chances = probabilities(logits, replace(row, target=NO_TARGET))
    second = 0.5
    if row.target != NO_TARGET:
        second = 0.0 if chances[row.target] > 0.1 else 1 - 2**-24
        chances[row.target] = 0
        chances /= chances.sum()
    best = int(chances.argmax())
    return row.at(float(chances[:best].sum() + chances[best] / 2), second)


def _first_logits(subject: Subject, driver: Driver) -> NDArray[np.float64]:
    sequence = drawing_sequence(driver)
    logits = own_logits(subject, driver, sequence)
    driver.drop(sequence)
    return logits
