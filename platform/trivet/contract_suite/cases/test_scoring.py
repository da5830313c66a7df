"""Given tokens: raw logprobs, ranks, top and extra tokens, for any number of rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trivet.contract import StepOutput
from trivet.contract_suite.driver import drawing_work, scores_of, scoring_work
from trivet.contract_suite.expect import expect_greedy, expect_scores
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling, log_softmax, rank_of
from trivet.contract_suite.steps import Work
from trivet.contract_suite.subject import Subject
from trivet.engine.agreement import bound_of, compare, score_prompts


def _tolerance(subject: Subject) -> float:
    return bound_of("f32" if subject.is_exact else subject.dtype)


def test_teacher_forced_logprobs_agree_with_the_oracle(subject: Subject) -> None:
    """The function that verifies an instance before READY, on prompts of several lengths."""
    driver = subject.driver()
    size = driver.block_size
    prompts = [random_prompt(length, length) for length in (2, 3, size, size + 1, 3 * size + 5)]
    first_step = driver.next_step_number()
    measured = score_prompts(driver.runner, driver.plan, prompts, first_step=first_step)
    for _ in range(1_000):
        driver.next_step_number()
    begin = 0
    for prompt in prompts:
        part = slice(begin, begin + len(prompt) - 1)
        one = dataclasses.replace(
            measured,
            logprobs=measured.logprobs[part],
            top_ids=measured.top_ids[part],
            margins=measured.margins[part],
        )
        expect_scores(subject, prompt, one)
        begin = part.stop


@pytest.mark.parametrize("max_logits_rows", [1, 7, 64])
def test_more_rows_than_the_logits_workspace_are_done_in_pieces(
    subject: Subject, max_logits_rows: int
) -> None:
    """Rows of several sequences, so that pieces end inside one and begin inside another."""
    driver = subject.driver(max_logits_rows=max_logits_rows)
    prompts = [random_prompt(length, length) for length in (4, 12, 33)]
    sequences = [driver.add(prompt) for prompt in prompts]
    works = [scoring_work(sequence, len(sequence.token_ids)) for sequence in sequences]
    drawing = driver.add(random_prompt(6, 1))
    step, output = driver.run([*works, drawing_work(drawing, RowSampling())], num_logprobs=2)
    for sequence, prompt in zip(sequences, prompts, strict=True):
        expect_scores(subject, prompt, scores_of(output, step.rows_of(sequence)))
    expect_greedy(subject, drawing.token_ids[:6], drawing.token_ids[6:])


@pytest.mark.parametrize("count", [1, 5, 20])
def test_top_tokens_come_most_likely_first(subject: Subject, count: int) -> None:
    """Ids and raw logprobs of the K most likely tokens."""
    driver = subject.driver()
    prompt = random_prompt(10, 1)
    step, output = driver.run([scoring_work(driver.add(prompt), 10)], num_logprobs=count)
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    raw = log_softmax(subject.oracle().logits(prompt))
    for row in range(len(step.row_works)):
        given = np.take(raw[row], output.top_ids[row])
        np.testing.assert_allclose(output.top_logprobs[row], given, atol=_tolerance(subject))
        assert (np.diff(output.top_logprobs[row]) <= 0).all()
        assert len(set(output.top_ids[row].tolist())) == count
        if subject.is_exact:
            np.testing.assert_array_equal(output.top_ids[row], np.argsort(-raw[row], kind="stable")[:count])


def test_ranks_count_the_tokens_that_are_more_likely(subject: Subject) -> None:
    """1 is the most likely; over targets from one end of the vocabulary to the other."""
    driver = subject.driver()
    prompt = random_prompt(4, 2)
    sequence = driver.add(prompt)
    vocabulary = np.arange(driver.vocab_size, dtype=np.int32)
    raw = subject.oracle().logits(prompt)[-1]
    for target in range(0, driver.vocab_size, 13):
        row = RowSampling(draws=False, target=target)
        step, output = driver.run(
            [Work(sequence, sequence.num_left, (len(prompt) - 1,), (row,))], extra_ids=vocabulary
        )
        assert output.extra_logprobs is not None
        assert output.ranks[0] == rank_of(output.extra_logprobs[0], target)
        if subject.is_exact:
            assert output.ranks[0] == rank_of(raw, target)
        driver.rewind(step)


def test_extra_tokens_have_the_raw_logprobs_of_the_whole_vocabulary(subject: Subject) -> None:
    """They sum to 1 and agree with the oracle row by row."""
    driver = subject.driver()
    prompt = random_prompt(12, 3)
    extra_ids = np.random.default_rng(0).permutation(driver.vocab_size).astype(np.int32)
    _, output = driver.run([scoring_work(driver.add(prompt), 12)], extra_ids=extra_ids)
    assert output.extra_logprobs is not None
    raw = log_softmax(subject.oracle().logits(prompt)[:-1])
    np.testing.assert_allclose(np.exp(output.extra_logprobs).sum(axis=1), 1, atol=1e-4)
    likely = raw[:, extra_ids] > -12
    np.testing.assert_allclose(
        output.extra_logprobs[likely], raw[:, extra_ids][likely], atol=_tolerance(subject)
    )


def test_logprobs_are_raw_whatever_the_sampling_is(subject: Subject) -> None:
    """Temperature, filters, edits and masks change what is drawn, and no reported number."""
    driver = subject.driver()
    prompt = random_prompt(9, 4)
    rows = [
        RowSampling(),
        RowSampling(temperature=0.5, top_p=0.3, uniform=(0.2, 0.2)),
        RowSampling(temperature=2.0, top_k=2, min_p=0.2, uniform=(0.8, 0.2)),
        RowSampling(edits=((25, 1.0, 100.0), (26, 2.0, 1.0))),
        RowSampling(temperature=1.0, allowed=(60, 61, 62), uniform=(0.5, 0.5)),
    ]
    raw = log_softmax(subject.oracle().logits(prompt)[-1])
    tops: list[StepOutput] = []
    for row in rows:
        sequence = driver.add(prompt)
        _, output = driver.run([drawing_work(sequence, row)], num_logprobs=4)
        token = sequence.token_ids[-1]
        np.testing.assert_allclose(output.logprobs[0], raw[token], atol=_tolerance(subject))
        tops.append(output)
        driver.drop(sequence)
    for output in tops[1:]:
        assert output.top_logprobs is not None
        assert tops[0].top_logprobs is not None
        np.testing.assert_array_equal(output.top_ids, tops[0].top_ids)
        np.testing.assert_allclose(output.top_logprobs, tops[0].top_logprobs, atol=1e-5)


def test_scoring_rows_draw_nothing_and_disturb_no_drawing_row(subject: Subject) -> None:
    """num_tokens counts drawing rows, and a scored slot keeps its newest token."""
    driver = subject.driver()
    scored, drawn = driver.add(random_prompt(8, 5)), driver.add(random_prompt(8, 6))
    step, output = driver.run([scoring_work(scored, 8), drawing_work(drawn, RowSampling())], num_logprobs=2)
    counts = {id(work.sequence): int(n) for work, n in zip(step.works, output.num_tokens, strict=True)}
    assert counts == {id(scored): 0, id(drawn): 1}
    expect_scores(subject, scored.token_ids, scores_of(output, step.rows_of(scored)))
    expect_greedy(subject, drawn.token_ids[:8], drawn.token_ids[8:])


def test_any_tokens_of_a_chunk_may_be_rows(subject: Subject) -> None:
    """logits_rows picks; what is not picked costs no result."""
    driver = subject.driver()
    prompt = random_prompt(20, 7)
    sequence = driver.add(prompt)
    offsets = (0, 5, 6, 13)
    rows = tuple(RowSampling(draws=False, target=prompt[offset + 1]) for offset in offsets)
    _, output = driver.run([Work(sequence, 17, offsets, rows)], num_logprobs=2)
    raw = log_softmax(subject.oracle().logits(prompt))
    wanted = [raw[offset, prompt[offset + 1]] for offset in offsets]
    np.testing.assert_allclose(output.logprobs, wanted, atol=_tolerance(subject))


def test_the_agreement_check_tells_another_model_from_this_one(subject: Subject) -> None:
    """The bound is no rubber stamp: scores of another model of the same shape do not pass."""
    if not subject.has_weights:
        pytest.skip(f"backend {subject.backend.name} computes one function whatever the model")
    prompt = random_prompt(40, 8)
    driver, other = subject.driver(), subject.driver("llama-bf16-file")
    mine, theirs = driver.score(driver.add(prompt)), other.score(other.add(prompt))
    assert not compare(mine, theirs, subject.dtype).agrees
    assert compare(mine, mine, subject.dtype).agrees
