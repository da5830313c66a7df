"""Rule 5: randomness comes in; a row's token depends on its logits and its columns alone."""

from __future__ import annotations

import random
import sys

import numpy as np

from trivet.contract_suite.driver import Driver, drawing_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling, middle_of, probabilities
from trivet.contract_suite.subject import Subject

WARM = RowSampling(temperature=1.0)
PROMPT = random_prompt(9, 1)


def _wanted_draws(subject: Subject, count: int) -> list[tuple[RowSampling, int]]:
    """The likeliest tokens after PROMPT, each with a uniform number in the middle of its share."""
    logits = subject.oracle().logits(PROMPT)[-1]
    likely = np.argsort(-probabilities(logits, WARM))[:count]
    return [(WARM.at(middle_of(logits, WARM, int(token))), int(token)) for token in likely]


def _mates(driver: Driver, count: int) -> list[tuple[list[int], RowSampling]]:
    rows = [
        RowSampling(),
        RowSampling(temperature=0.7, top_k=3, uniform=(0.9, 0.1)),
        RowSampling(temperature=1.3, top_p=0.8, uniform=(0.1, 0.9)),
        RowSampling(temperature=1.0, allowed=(40, 41, 42), uniform=(0.6, 0.3)),
    ]
    return [(random_prompt(len(PROMPT), 100 + i), rows[i % len(rows)]) for i in range(count)]


def test_a_row_draws_the_same_token_alone_and_in_any_place_of_a_batch(subject: Subject) -> None:
    """The same columns among mixed company: first, in the middle, last."""
    driver = subject.driver()
    for row, token in _wanted_draws(subject, 3):
        for place in (0, 2, 5):
            company = _mates(driver, place)
            everyone = [*company, (PROMPT, row), *_mates(driver, 5 - place)]
            sequences = [driver.add(prompt) for prompt, _ in everyone]
            works = [
                drawing_work(sequence, columns)
                for sequence, (_, columns) in zip(sequences, everyone, strict=True)
            ]
            driver.run(works)
            assert sequences[place].token_ids[-1] == token, f"in place {place} of {len(everyone)}"
            for sequence in sequences:
                driver.drop(sequence)


def test_a_retry_draws_the_same_token_whatever_the_generators_of_the_process_say(subject: Subject) -> None:
    """No runner owns a generator, nor borrows one."""
    driver = subject.driver()
    sequence = driver.add(PROMPT)
    for row, token in _wanted_draws(subject, 4):
        for seed in range(4):
            _seed_all(seed)
            step, _ = driver.run([drawing_work(sequence, row)])
            assert sequence.token_ids[-1] == token
            driver.rewind(step)


def test_drawing_leaves_the_generators_of_the_process_alone(subject: Subject) -> None:
    """A host program's seed is its own."""
    driver = subject.driver()
    sequence = driver.add(PROMPT)
    _seed_all(3)
    before = _peek_all()
    for row, _ in _wanted_draws(subject, 2):
        step, _ = driver.run([drawing_work(sequence, row)])
        driver.rewind(step)
    assert _peek_all() == before


def test_the_token_is_the_first_whose_cumulative_probability_exceeds_uniform(subject: Subject) -> None:
    """In vocabulary order: as uniform grows over [0, 1), the tokens grow too and each gets its share."""
    driver = subject.driver()
    logits = subject.oracle().logits(PROMPT)[-1]
    shares = probabilities(logits, WARM)
    sequence = driver.add(PROMPT)
    points = (np.arange(64) + 0.5) / 64
    drawn = []
    for point in points:
        step, _ = driver.run([drawing_work(sequence, WARM.at(float(point)))])
        drawn.append(sequence.token_ids[-1])
        driver.rewind(step)
    assert drawn == sorted(drawn)
    if subject.is_exact:
        ends = np.cumsum(shares)
        clear = [np.abs(ends - point).min() > 1e-4 for point in points]
        wanted = [int(np.searchsorted(ends, point, "right")) for point in points]
        assert [d for d, c in zip(drawn, clear, strict=True) if c] == [
            w for w, c in zip(wanted, clear, strict=True) if c
        ]


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _peek_all() -> list[float]:
    """The next number of each generator, without moving it."""
    python, numpy_state = random.getstate(), np.random.get_state()
    numbers = [random.random(), float(np.random.random())]
    random.setstate(python)
    np.random.set_state(numpy_state)
    torch = sys.modules.get("torch")
    if torch is not None:
        state = torch.get_rng_state()
        numbers.append(float(torch.rand(())))
        torch.set_rng_state(state)
    return numbers
