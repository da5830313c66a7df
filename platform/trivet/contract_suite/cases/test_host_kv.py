"""Feature.HOST_KV: blocks that are swapped out to host memory come back as they were."""

from __future__ import annotations

import pytest

from trivet.contract import Feature
from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.engine_runs import greedy_request, run_core
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.subject import Subject

NUM_HOST_BLOCKS = 12


def _swap_bytes(subject: Subject) -> int:
    """Enough for `NUM_HOST_BLOCKS`. Skips where there is nothing to test."""
    driver = subject.driver()
    if Feature.HOST_KV not in driver.runner.features:
        pytest.skip(f"backend {subject.backend.name} does not declare Feature.HOST_KV")
    return NUM_HOST_BLOCKS * driver.plan.kv.block_bytes


def _driver(subject: Subject) -> Driver:
    driver = subject.driver(swap_bytes=_swap_bytes(subject))
    assert driver.plan.num_host_blocks == NUM_HOST_BLOCKS
    return driver


def test_the_plan_holds_the_host_blocks_that_were_asked_for(subject: Subject) -> None:
    """And none unasked; what the runner has is what was planned."""
    swap_bytes = _swap_bytes(subject)
    plan = subject.plan(subject.config())
    assert plan.num_host_blocks == 0
    with subject.launched(swap_bytes=swap_bytes + 1) as launched:
        assert launched.plan.num_host_blocks == NUM_HOST_BLOCKS
        for parts in (launched.plan.parts, launched.runner.memory()):
            assert {part.name: part.size_bytes for part in parts}["host_kv"] == swap_bytes
        assert launched.plan.total_bytes == plan.total_bytes + swap_bytes


def test_a_sequence_that_was_swapped_out_goes_on_where_it_was(subject: Subject) -> None:
    """Other blocks, another slot; its old blocks belong to others by then. The last block is not full."""
    driver = _driver(subject)
    prompt = random_prompt(2 * driver.block_size + 3, 1)
    sequence = driver.add(prompt)
    driver.generate([sequence], 3)
    host = [7, 0, 11, 3, 5, 4][: len(sequence.blocks[0])]
    before = [list(blocks) for blocks in sequence.blocks]
    copies = driver.swap_out(sequence, host)
    thief = driver.add(random_prompt(3 * driver.block_size, 2))
    driver.run([greedy_work(thief)], copies=copies)
    assert set(thief.blocks[0]) & set(before[0]), "the driver gave other blocks"
    driver.generate([thief], 2)
    copies = driver.swap_in(sequence, host)
    driver.run([greedy_work(sequence), greedy_work(thief)], copies=copies)
    driver.generate([sequence, thief], 4)
    expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])
    length = 3 * driver.block_size
    expect_greedy(subject, thief.token_ids[:length], thief.token_ids[length:])


def test_the_copies_of_a_batch_are_carried_out_one_after_the_other(subject: Subject) -> None:
    """One comes in where another has just gone out, on both sides."""
    driver = _driver(subject)
    size = driver.block_size
    prompts = [random_prompt(2 * size, 1), random_prompt(2 * size, 2)]
    away, here = (driver.add(prompt) for prompt in prompts)
    driver.generate([away, here], 1)
    first, second = [0, 1, 2, 3, 4, 5], [11, 10, 9, 8, 7, 6]
    driver.run([], copies=driver.swap_out(away, first[: len(away.blocks[0])]))
    for _ in range(2):
        count = len(here.blocks[0])
        out = driver.swap_out(here, second[:count])
        into = driver.swap_in(away, first[:count])  # the blocks that the other has just left
        driver.run([], copies=(*out, *into))
        driver.generate([away], 2)
        away, here, first, second = here, away, second, first
    driver.run([], copies=driver.swap_in(away, first[: len(here.blocks[0])]))
    driver.generate([away, here], 4)
    for sequence in (away, here):
        expect_greedy(subject, sequence.token_ids[: 2 * size], sequence.token_ids[2 * size :])


def test_a_step_that_is_queued_before_a_swap_still_counts(subject: Subject) -> None:
    """The block that goes out is written by the step before, which may not have been carried out yet."""
    driver = _driver(subject)
    prompt = random_prompt(driver.block_size + 1, 3)
    sequence, other = driver.add(prompt), driver.add(random_prompt(5, 4))
    driver.generate([other], 1)
    step = driver.forward([greedy_work(sequence)])
    driver.sample(step)
    host = list(range(len(sequence.blocks[0])))
    copies = driver.swap_out(sequence, host)
    step = driver.follow(step, [greedy_work(other)], copies)
    driver.collect(step)
    driver.run([greedy_work(sequence)], copies=driver.swap_in(sequence, host))
    driver.generate([sequence], 4)
    expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_the_engine_swaps_where_copying_is_cheaper_and_nobody_can_tell(subject: Subject) -> None:
    """Eight sequences in the room of two and a half, with swapping and without."""
    swap_bytes = _swap_bytes(subject)
    size = subject.block_size
    length, count = size - size // 3, min(size + 8, 60)
    num_blocks = 1 + 5 * (-(-(length + count) // size)) // 2
    prompts = [random_prompt(length + seed % 3, seed) for seed in range(8)]
    for cheap in (True, False):
        with subject.core(max_model_len=None, num_blocks=num_blocks, swap_bytes=swap_bytes) as core:
            assert core.scheduler.swap is not None
            core.scheduler.swap.costs.copy_s_per_block = 0.0 if cheap else 1e9
            core.scheduler.swap.costs.compute_s_per_token = 1.0
            outcomes = run_core(core, [greedy_request(str(i), p, count) for i, p in enumerate(prompts)])
            load = core.load()
            assert load.num_preemptions > 0
            assert (load.num_swaps > 0) == cheap
            assert (load.num_swapped, load.swap_usage) == (0, 0.0)
        for index, prompt in enumerate(prompts):
            expect_greedy(subject, prompt, outcomes[str(index)].token_ids)
