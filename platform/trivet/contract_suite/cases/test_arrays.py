"""Rules 6 and 7: who owns a step's arrays and when, and that a step can cross to a tensor-parallel rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from trivet.contract import Batch, Sampling, StepOutput
from trivet.contract_suite.driver import Driver, drawing_work, greedy_work, scoring_work
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import Work, arrays_of, build_batch, build_sampling
from trivet.contract_suite.subject import Subject
from trivet.runners.wire import round_trip

RICH_ROW = RowSampling(
    temperature=0.9,
    top_k=20,
    top_p=0.95,
    min_p=0.001,
    uniform=(0.37, 0.21),
    edits=((30, 1.3, -0.5), (31, 1.0, float("-inf"))),
    allowed=tuple(range(20, 120)),
)


def _rich_works(driver: Driver) -> list[Work]:
    """Every column in use: decodes, a chunk, scoring rows, drafts, masks and edits."""
    decoding = driver.add(random_prompt(driver.block_size + 2, 1))
    driver.prefill(decoding)
    drafting = driver.add(random_prompt(6, 2))
    driver.prefill(drafting)
    drafts = (50, 51)
    draft_rows = tuple(dataclasses.replace(RICH_ROW, target=token) for token in drafts)
    return [
        drawing_work(decoding, RICH_ROW),
        Work(drafting, 3, (0, 1, 2), (*draft_rows, RICH_ROW), drafts),
        scoring_work(driver.add(random_prompt(5, 3)), 5),
        Work(driver.add(random_prompt(9, 4)), 7),
    ]


def test_a_runner_never_writes_to_the_arrays_of_a_step(subject: Subject) -> None:
    """They are the core's; it may hold them for a retry."""
    driver = subject.driver()
    step = driver.forward(_rich_works(driver))
    batch_before = [array.copy() for array in arrays_of(step.batch)]
    driver.sample(step, num_logprobs=4, extra_ids=np.array([3, 5], np.int32))
    assert step.sampling is not None
    sampling_before = [array.copy() for array in arrays_of(step.sampling)]
    driver.collect(step, keep_arrays=True)
    for before, after in zip(
        [*batch_before, *sampling_before], [*arrays_of(step.batch), *arrays_of(step.sampling)], strict=True
    ):
        np.testing.assert_array_equal(before, after)


def test_a_runner_needs_no_array_of_a_step_once_its_collect_has_returned(subject: Subject) -> None:
    """The driver fills them with zeros there and then, at full depth."""
    driver = subject.driver()
    prompts = [random_prompt(length, length) for length in (2, driver.block_size + 3, 14)]
    sequences = [driver.add(prompt) for prompt in prompts]
    step = driver.forward([greedy_work(sequence) for sequence in sequences])
    driver.sample(step)
    for _ in range(5):
        done = step
        step = driver.follow(step, [greedy_work(sequence) for sequence in sequences])
        assert not done.buffer.any()
    driver.collect(step)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_a_result_belongs_to_the_caller(subject: Subject) -> None:
    """Later steps do not change what an earlier collect has returned."""
    driver = subject.driver()
    sequence = driver.add(random_prompt(8, 5))
    results: list[tuple[StepOutput, dict[str, Any]]] = []
    for _ in range(4):
        _, output = driver.run([greedy_work(sequence)], num_logprobs=3, extra_ids=np.array([1, 2], np.int32))
        results.append((output, _copied(output)))
    for output, before in results:
        for name, value in before.items():
            np.testing.assert_array_equal(getattr(output, name), value, err_msg=name)


def test_results_have_the_contracts_shapes_and_types(subject: Subject) -> None:
    """What the core indexes without looking."""
    driver = subject.driver()
    step = driver.forward(_rich_works(driver))
    driver.sample(step, num_logprobs=4, extra_ids=np.array([3, 5], np.int32))
    output = driver.collect(step)
    num_rows, num_seqs = len(step.row_works), len(step.works)
    wanted = {
        "token_ids": ((num_rows,), np.int32),
        "num_tokens": ((num_seqs,), np.int32),
        "is_finite": ((num_rows,), np.bool_),
        "logprobs": ((num_rows,), np.float32),
        "ranks": ((num_rows,), np.int32),
        "top_ids": ((num_rows, 4), np.int32),
        "top_logprobs": ((num_rows, 4), np.float32),
        "extra_logprobs": ((num_rows, 2), np.float32),
    }
    assert output.step == step.number
    for name, (shape, dtype) in wanted.items():
        array = getattr(output, name)
        assert (array.shape, array.dtype) == (shape, dtype), name
    assert output.pooled is None
    assert output.device_time_s >= 0


def test_a_step_may_come_as_one_buffer(subject: Subject) -> None:
    """Flattened, sent and rebuilt, it gives the same result: nothing else than arrays and values counts."""
    driver = subject.driver()
    works = _rich_works(driver)
    step = driver.forward(works)
    driver.sample(step, num_logprobs=4, extra_ids=np.array([3, 5], np.int32))
    direct = _copied(driver.collect(step))
    driver.rewind(step)

    number = driver.next_step_number()
    batch, _ = build_batch(number, step.works, _plain_buffer, (), len(driver.free_blocks))
    rows = [row for work in step.works for row in work.sampling]
    sampling = build_sampling(rows, driver.vocab_size, 4, np.array([3, 5], np.int32))
    sent_batch, sent_sampling = round_trip(batch), round_trip(sampling)
    assert isinstance(sent_batch, Batch)
    assert isinstance(sent_sampling, Sampling)
    driver.runner.forward(sent_batch)
    driver.runner.sample(number, sent_sampling)
    by_wire = _copied(driver.runner.collect(number))
    np.testing.assert_array_equal(by_wire["num_tokens"], direct["num_tokens"])
    counting = step.defined_rows(direct["num_tokens"])
    drawing = [row for row in counting if rows[row].draws]
    np.testing.assert_array_equal(by_wire["token_ids"][drawing], direct["token_ids"][drawing])
    for name in ("is_finite", "logprobs", "ranks", "top_ids", "top_logprobs", "extra_logprobs"):
        np.testing.assert_allclose(by_wire[name][counting], direct[name][counting], atol=1e-6, err_msg=name)


def test_the_host_buffer_has_the_size_that_was_asked_for(subject: Subject) -> None:
    """And two steps under way get two buffers."""
    driver = subject.driver()
    first, second = (driver.runner.host_buffer(100) for _ in range(2))
    for buffer in (first, second):
        assert buffer.shape == (100,)
        assert buffer.dtype == np.int32
        assert buffer.flags.c_contiguous
    assert not np.shares_memory(first, second)


def _plain_buffer(num_int32: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.zeros(num_int32, np.int32)


def _copied(output: StepOutput) -> dict[str, Any]:
    """Fields that are there; what is undefined (tokens where nothing was drawn) included, as it was."""
    values = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
    return {name: np.copy(value) for name, value in values.items() if value is not None}
