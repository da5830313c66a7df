"""Rules 2 and 3: KV writes come before reads, and what stands behind a sequence is never used."""

from __future__ import annotations

import pytest

from trivet.contract_suite.driver import greedy_work, scores_of, scoring_work
from trivet.contract_suite.expect import expect_greedy, expect_scores
from trivet.contract_suite.poison import poisoned
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.steps import Work
from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_models import NAN_TOKEN


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_tokens_of_a_chunk_see_each_other_at_any_number_of_threads(
    subject: Subject, num_threads: int
) -> None:
    """A kernel that writes and reads KV row by row is right for decode and a race for chunks."""
    options = {"num_threads": str(num_threads)}
    if not subject.accepts(subject.config(options=options)):
        pytest.skip(f"backend {subject.backend.name} has no option num_threads")
    driver = subject.driver(options=options)
    size = driver.block_size
    for length in (2, 3, 5, size - 1, size, size + 1, 3 * size):
        prompt = random_prompt(length, length)
        for _ in range(3):
            sequence = driver.add(prompt)
            expect_scores(subject, prompt, driver.score(sequence))
            driver.drop(sequence)


def test_chunks_of_every_size_equal_the_whole(subject: Subject) -> None:
    """Chunked prefill: a chunk sees the chunks before it through the block table."""
    driver = subject.driver()
    size = driver.block_size
    length = 2 * size + 5 if size <= 32 else size + 9
    sizes = sorted({*range(1, 7), 11, *(n for n in range(size - 1, length + 1) if n % size < 3), length})
    prompt = random_prompt(length, 1)
    for chunk in sizes:
        sequence = driver.add(prompt)
        expect_scores(subject, prompt, driver.score(sequence, chunk=chunk))
        driver.drop(sequence)


def test_several_chunks_and_decodes_share_a_batch(subject: Subject) -> None:
    """Ragged: each sequence at its own position with its own query length."""
    driver = subject.driver()
    size = driver.block_size
    lengths = (1, 4, size, size + 3, 2 * size + 1)
    prompts = [random_prompt(length + 20, length) for length in lengths]
    sequences = [driver.add(prompt) for prompt in prompts]
    for sequence, length in zip(sequences, lengths, strict=True):
        sequence.token_ids = sequence.token_ids[: length + 1]
        driver.prefill(sequence)
    for index, sequence in enumerate(sequences):
        sequence.token_ids = list(prompts[index])
    works = [scoring_work(sequence, 1 + 4 * index) for index, sequence in enumerate(sequences)]
    step, output = driver.run(works, num_logprobs=2)
    for sequence, work, length, prompt in zip(sequences, works, lengths, prompts, strict=True):
        measured = scores_of(output, step.rows_of(sequence))
        expect_scores(subject, prompt[: length + work.query_len + 1], measured, start=length)


def test_a_prompt_may_be_shared_from_the_step_after_its_own(subject: Subject) -> None:
    """Prefix sharing: the child reads its parent's blocks while the parent's step is still under way."""
    driver = subject.driver()
    size = driver.block_size
    prefix = random_prompt(2 * size, 1)
    parent = driver.add([*prefix, *random_prompt(3, 2)])
    step = driver.forward([greedy_work(parent)])
    driver.sample(step)
    children = [
        driver.fork(parent, [*prefix, *random_prompt(4 + seed, 10 + seed)], num_shared=1 + seed % 2)
        for seed in range(4)
    ]
    step = driver.follow(step, [greedy_work(child) for child in (parent, *children)])
    driver.collect(step)
    driver.generate([parent, *children], 5)
    expect_greedy(subject, parent.token_ids[: 2 * size + 3], parent.token_ids[2 * size + 3 :])
    for seed, child in enumerate(children):
        length = 2 * size + 4 + seed
        expect_greedy(subject, child.token_ids[:length], child.token_ids[length:])


def test_a_shared_prefix_gives_the_scores_of_a_whole_prompt(subject: Subject) -> None:
    """From shared blocks alone, after the parent has gone on to write behind them."""
    driver = subject.driver()
    size = driver.block_size
    prefix = random_prompt(2 * size, 3)
    parent = driver.add([*prefix, *random_prompt(size, 4)])
    driver.generate([parent], 3)
    prompt = [*prefix, *random_prompt(size + 2, 5)]
    child = driver.fork(parent, prompt, num_shared=2)
    expect_scores(subject, prompt, driver.score(child), start=2 * size)


def test_slots_behind_a_sequence_may_hold_nan(subject: Subject) -> None:
    """0 * NaN is NaN: kernels have to select, in values as well as in keys."""
    model, options = poisoned(subject)
    driver = subject.driver(model, options=options)
    size = driver.block_size
    for length in (1, 2, size - 1, size + 1, 2 * size + 3):
        poison = driver.add([NAN_TOKEN] * (3 * size + 1))
        driver.prefill(poison)
        driver.drop(poison)
        prompt = random_prompt(length + 6, length)
        sequence = driver.add(prompt)
        measured = driver.score(sequence, chunk=max(1, length))
        assert set(sequence.blocks[0]) <= set(range(1, driver.plan.num_blocks[0]))
        expect_scores(subject, prompt, measured, model)
        driver.generate([sequence], 2)
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :], model)
        driver.drop(sequence)


def test_stale_keys_and_values_behind_a_sequence_are_not_seen(subject: Subject) -> None:
    """The same with plain numbers left by a longer sequence."""
    driver = subject.driver()
    size = driver.block_size
    for length in (1, size - 1, size + 1):
        longer = driver.add(random_prompt(3 * size, 40 + length))
        driver.generate([longer], 1)
        driver.drop(longer)
        prompt = random_prompt(length, length)
        sequence = driver.add(prompt)
        driver.generate([sequence], 5)
        expect_greedy(subject, prompt, sequence.token_ids[length:])
        driver.drop(sequence)


def test_the_scratch_block_may_hold_nan(subject: Subject) -> None:
    """Tables are padded with block 0, and padding may have written anything there.

    To fill it, this one case puts a sequence on block 0, which the engine core never does.
    """
    if not subject.has_weights:
        pytest.skip(f"backend {subject.backend.name} has no weights that could hold NaN")
    driver = subject.driver("poisoned")
    size = driver.block_size
    poison = driver.add([NAN_TOKEN] * size)
    poison.blocks = [[0] for _ in poison.blocks]
    driver.run([Work(poison, size)])
    prompts = [random_prompt(length, length) for length in (1, 3, size + 1, 4 * size + 2)]
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.generate(sequences, 4)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :], "poisoned")
