"""Rule 9: a step that runs out of memory takes nothing with it.

For backends that can be made to fail: option `out_of_memory_steps` = `4` lets `collect(4)` raise.
"""

from __future__ import annotations

import pytest

from trivet.contract_suite.driver import greedy_work
from trivet.contract_suite.engine_runs import greedy_request, run_core
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.subject import Subject
from trivet.errors import OutOfMemory

FAULTY_STEP = 4


def _options(subject: Subject) -> dict[str, str]:
    options = {"out_of_memory_steps": str(FAULTY_STEP)}
    if not subject.accepts(subject.config(options=options)):
        pytest.skip(f"backend {subject.backend.name} cannot be made to fail (no option out_of_memory_steps)")
    return options


def test_out_of_memory_leaves_the_steps_before_it_intact(subject: Subject) -> None:
    """After the error the runner is idle: the step is tried again and gives the oracle's tokens."""
    with subject.launched(options=_options(subject)) as launched:
        driver = subject.drive(launched)
        prompts = [random_prompt(driver.block_size + 2, 1), random_prompt(5, 2)]
        sequences = [driver.add(prompt) for prompt in prompts]
        for _ in range(FAULTY_STEP - 1):
            driver.run([greedy_work(sequence) for sequence in sequences])
        step = driver.forward([greedy_work(sequence) for sequence in sequences])
        driver.sample(step)
        with pytest.raises(OutOfMemory):
            driver.collect(step)
        driver.rewind(step)
        driver.generate(sequences, 5)
        for prompt, sequence in zip(prompts, sequences, strict=True):
            expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_out_of_memory_drops_the_step_that_is_queued_behind_it(subject: Subject) -> None:
    """Nothing of step n or later counts: step n + 1 is not collected, and both are tried again."""
    with subject.launched(options=_options(subject)) as launched:
        if launched.runner.max_in_flight < 2:
            pytest.skip("one step at a time: nothing stands behind the one that fails")
        driver = subject.drive(launched)
        prompt = random_prompt(9, 3)
        sequence = driver.add(prompt)
        for _ in range(FAULTY_STEP - 1):
            driver.run([greedy_work(sequence)])
        failing = driver.forward([greedy_work(sequence)])
        driver.sample(failing)
        driver.forward([greedy_work(sequence)])
        with pytest.raises(OutOfMemory):
            driver.collect(failing)
        driver.rewind(failing)
        driver.generate([sequence], 5)
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_the_engine_goes_on_after_a_step_without_memory(subject: Subject) -> None:
    """The core queues the step's sequences again; but for the youngest of a small step, all finish."""
    prompts = [random_prompt(10 + seed, seed) for seed in range(4)]
    with subject.core(options=_options(subject)) as core:
        outcomes = run_core(core, [greedy_request(str(i), prompt, 8) for i, prompt in enumerate(prompts)])
    failed = [outcome for outcome in outcomes.values() if outcome.failure is not None]
    assert [failure.failure.code for failure in failed if failure.failure] in ([], [OutOfMemory.code])
    for index, prompt in enumerate(prompts):
        if outcomes[str(index)].failure is None:
            assert len(outcomes[str(index)].token_ids) == 8
            expect_greedy(subject, prompt, outcomes[str(index)].token_ids)
