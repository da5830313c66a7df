"""Rule 4: rows are independent, also of a sequence that is not a number."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract_suite.driver import drawing_work, greedy_work, scoring_work
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.poison import bad_tokens, poisoned
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_models import INF_TOKEN, NAN_TOKEN


@pytest.mark.parametrize("bad_token", [NAN_TOKEN, INF_TOKEN], ids=["nan", "inf"])
def test_nan_in_one_sequence_shows_in_its_own_rows_only(subject: Subject, bad_token: int) -> None:
    """In a batch of decodes and prefills, and for the batch mates' later steps too."""
    model, options = poisoned(subject)
    driver = subject.driver(model, options=options)
    if bad_token not in bad_tokens(subject):
        pytest.skip(f"backend {subject.backend.name} knows no token {bad_token} that spoils its sequence")
    prompts = [random_prompt(length, length) for length in (3, 6, driver.block_size + 1, 9)]
    healthy = [driver.add(prompt) for prompt in prompts]
    driver.generate(healthy[:2], 2)
    sick = driver.add([*random_prompt(4, 1), bad_token])
    step, output = driver.run([greedy_work(sequence) for sequence in (*healthy, sick)])
    for row, work in enumerate(step.row_works):
        assert output.is_finite[row] == (work.sequence is not sick)
    row = step.rows_of(sick)[0]
    assert output.token_ids[row] == 0, "a row that is not finite draws token 0"
    assert output.num_tokens[step.works.index(step.row_works[row])] == 1
    driver.drop(sick)
    newcomer = driver.add(random_prompt(5, 77))
    driver.generate([*healthy, newcomer], 4)
    for prompt, sequence in zip([*prompts, newcomer.token_ids[:5]], [*healthy, newcomer], strict=True):
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :], model)


def test_a_sequence_that_went_bad_stays_bad_and_harms_nobody_at_any_temperature(subject: Subject) -> None:
    """Its later tokens read its own bad KV; sampled batch mates still draw."""
    model, options = poisoned(subject)
    driver = subject.driver(model, options=options)
    sick = driver.add([NAN_TOKEN, *random_prompt(4, 2)])
    healthy = driver.add(random_prompt(7, 3))
    warm = RowSampling(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, uniform=(0.4, 0.4))
    for _ in range(3):
        step, output = driver.run(
            [drawing_work(sequence, warm) for sequence in (sick, healthy)], num_logprobs=3
        )
        assert not output.is_finite[step.rows_of(sick)[0]]
        row = step.rows_of(healthy)[0]
        assert output.is_finite[row]
        assert np.isfinite(output.logprobs[row])


def test_scoring_rows_of_one_sequence_may_be_bad_while_those_of_another_are_good(subject: Subject) -> None:
    """Many rows a sequence: the flag is the row's."""
    model, options = poisoned(subject)
    driver = subject.driver(model, options=options)
    sick = driver.add([NAN_TOKEN, *random_prompt(8, 2)])
    healthy = driver.add(random_prompt(9, 3))
    step, output = driver.run([scoring_work(sequence, 9) for sequence in (sick, healthy)], num_logprobs=2)
    assert not output.is_finite[step.rows_of(sick)].any()
    assert output.is_finite[step.rows_of(healthy)].all()
    assert np.isfinite(output.logprobs[step.rows_of(healthy)]).all()


def test_a_forbidden_vocabulary_is_not_a_bad_row(subject: Subject) -> None:
    """-inf from edits and masks is no fault of the sequence while a token is left."""
    driver = subject.driver()
    sequence = driver.add(random_prompt(6, 4))
    row = RowSampling(allowed=(33,), edits=((33, 1.0, -5.0), (34, 1.0, float("-inf"))))
    _, output = driver.run([drawing_work(sequence, row)])
    assert output.is_finite[0]
    assert output.token_ids[0] == 33
