"""Rule 8 and the plan: what was planned is what is held, before the first step and after the last."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import psutil
import pytest

from trivet.contract import MemoryPart, MemoryPlan
from trivet.contract_suite.driver import Driver, drawing_work, scoring_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import Work
from trivet.contract_suite.subject import GGUF_MODEL, Subject
from trivet.errors import DoesNotFit

PART_NAMES = {"weights", "kv", "activations", "logits", "graphs", "collectives", "context", "host_kv"}
HELD = {"weights", "kv", "host_kv"}  # from the start on; others come and go, or are the libraries'
AGREEMENT = 0.02  # of the plan and what was measured
NUM_STEPS = 200
LONGEST_PIECE = 12  # tokens
# Of the process beside the planned parts: NumPy's and Python's own arenas wander by a few MiB.
RSS_SLACK_BYTES = 12 << 20


def _total(parts: Sequence[MemoryPart]) -> int:
    return sum(part.size_bytes for part in parts)


def _by_name(parts: Sequence[MemoryPart]) -> dict[str, int]:
    return {part.name: part.size_bytes for part in parts}


def test_the_plan_and_the_runner_agree_within_two_percent(subject: Subject) -> None:
    """What is held; and nothing takes more than is planned for it."""
    with subject.launched() as launched:
        _expect_agreement(launched.plan, launched.runner.memory())


def test_the_plan_of_the_real_model_agrees_within_two_percent(subject: Subject) -> None:
    """Quantised files, tied embeddings: sizes that a formula gets wrong easily."""
    if not subject.has_weights:
        pytest.skip(f"backend {subject.backend.name} holds no weights")
    driver = subject.driver(GGUF_MODEL)
    _expect_agreement(driver.plan, driver.runner.memory())


def _expect_agreement(plan: MemoryPlan, measured: Sequence[MemoryPart]) -> None:
    planned = _by_name(plan.parts)
    assert set(planned) | set(_by_name(measured)) <= PART_NAMES
    if "context" not in _by_name(measured):  # the process itself, of which a runner need not know
        planned.pop("context", None)
    for name in HELD & set(planned):
        assert _by_name(measured)[name] == pytest.approx(planned[name], rel=AGREEMENT), name
    for part in measured:
        assert part.size_bytes <= planned[part.name] * (1 + AGREEMENT), part.name


def test_steps_allocate_no_memory_that_the_plan_does_not_hold(subject: Subject) -> None:
    """200 steps of all shapes: the runner's own account stands still, and so does the process.

    The process is measured over the second hundred, which repeats the first: libraries keep what they
    prepared for a shape, and that is no leak.
    """
    process = psutil.Process()
    with subject.launched() as launched:
        driver = subject.drive(launched)
        before = _total(launched.runner.memory())
        rss = []
        for _ in range(2):
            generator = np.random.default_rng(0)
            for number in range(NUM_STEPS // 2):
                _mixed_step(driver, generator, number)
            rss.append(_held_bytes(process))
        assert _total(launched.runner.memory()) <= max(before, launched.plan.total_bytes) * (1 + AGREEMENT)
    growth = rss[1] - rss[0]
    assert growth <= RSS_SLACK_BYTES, f"{NUM_STEPS // 2} steps took {growth >> 20} MiB that no plan holds"


def _held_bytes(process: psutil.Process) -> int:
    """Resident memory that is in use: no pages of files, and nothing that the C library keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    resident = process.memory_info()
    return int(resident.rss - resident.shared)


def _mixed_step(driver: Driver, generator: np.random.Generator, number: int) -> None:
    driver.reset()
    row = RowSampling(temperature=0.9, top_p=0.9, uniform=(0.3, 0.3))
    lengths = generator.integers(1, LONGEST_PIECE, size=1 + number % 5)
    works: list[Work] = []
    for length in lengths:
        sequence = driver.add(random_prompt(int(length), number))
        works.append(
            drawing_work(sequence, row) if number % 3 else scoring_work(sequence, len(sequence.token_ids))
        )
    driver.run(works, num_logprobs=number % 4)


def test_the_plan_is_a_function_of_its_arguments(subject: Subject) -> None:
    """Asked twice it says the same, and says what was decided for it."""
    config = subject.config(num_blocks=140, max_num_batched_tokens=64, max_model_len=300)
    first, second = subject.plan(config), subject.plan(config)
    assert first == second
    assert set(first.num_blocks) == {140}
    assert (first.max_num_batched_tokens, first.max_model_len) == (64, 300)
    assert len(first.num_blocks) == len(first.kv.groups)
    kv = _by_name(first.parts).get("kv", 0)
    assert kv == pytest.approx(140 * first.kv.block_bytes, rel=AGREEMENT)


def test_more_blocks_are_planned_as_so_many_more_bytes(subject: Subject) -> None:
    """The supervisor's ledger adds these up."""
    small, large = (subject.plan(subject.config(num_blocks=count)) for count in (140, 180))
    grown = _by_name(large.parts).get("kv", 0) - _by_name(small.parts).get("kv", 0)
    assert grown == pytest.approx(40 * large.kv.block_bytes, rel=AGREEMENT)


def test_a_plan_for_a_device_that_is_too_small_is_refused(subject: Subject) -> None:
    """With the bytes that are wanted and those that are there."""
    files = subject.models.files("llama")
    tiny = replace(subject.device, total_bytes=1 << 16, free_bytes=1 << 16)
    with pytest.raises(DoesNotFit, match=r"\d.*\d"):
        subject.backend.plan(subject.models.spec("llama"), files.weights, subject.config(), [tiny])


@pytest.mark.parametrize("num_blocks", [1, 0, -3])
def test_a_plan_without_room_for_a_sequence_is_refused(subject: Subject, num_blocks: int) -> None:
    """Block 0 is scratch: a plan of it alone would be a model that refuses every prompt."""
    with pytest.raises(DoesNotFit, match=r"num_blocks|blocks"):
        subject.plan(subject.config(num_blocks=num_blocks, max_model_len=None))


def test_a_plan_that_cannot_be_held_is_refused_with_both_numbers(subject: Subject) -> None:
    """allocate_kv touches every page or says at once that they are not there."""
    config = subject.config()
    plan = subject.plan(config)
    num_blocks = tuple(
        int(64 * subject.device.total_bytes / max(1, plan.kv.block_bytes)) for _ in plan.num_blocks
    )
    parts = [part for part in plan.parts if part.name != "kv"]
    kv = MemoryPart("kv", sum(num_blocks) * plan.kv.block_bytes)
    with pytest.raises(DoesNotFit) as refusal:
        subject.launch(config, plan=replace(plan, num_blocks=num_blocks, parts=(*parts, kv))).runner.close()
    assert len(re.findall(r"\d+(?:\.\d+)?", str(refusal.value))) >= 2, str(refusal.value)


def test_loading_reports_bytes_done_and_bytes_in_all(subject: Subject) -> None:
    """Progress never falls and ends at the total."""
    config = subject.config()
    spec, weights = subject.models.spec("llama"), subject.models.files("llama").weights
    runner = subject.backend.create_runner(spec, config, subject.plan(config), [subject.device])
    reports: list[tuple[int, int]] = []
    runner.load(weights, lambda done, total: reports.append((done, total)))
    runner.close()
    assert reports
    assert len({total for _, total in reports}) == 1
    done = [count for count, _ in reports]
    assert done == sorted(done)
    assert done[-1] == reports[-1][1]


def test_close_may_be_called_twice_and_at_any_stage(subject: Subject) -> None:
    """Before load, after load, after warm_up."""
    config = subject.config()
    spec, weights = subject.models.spec("llama"), subject.models.files("llama").weights
    for num_stages in range(4):
        runner = subject.backend.create_runner(spec, config, subject.plan(config), [subject.device])
        if num_stages > 0:
            runner.load(weights, lambda done, total: None)
        if num_stages > 1:
            runner.allocate_kv()
        if num_stages > 2:
            runner.warm_up()
        runner.close()
        runner.close()


def test_a_closed_runners_memory_may_be_had_again(subject: Subject) -> None:
    """The same plan many times over, one after the other."""
    config = subject.config()
    process = psutil.Process()
    subject.launch(config).runner.close()
    before = process.memory_info().rss
    for _ in range(6):
        subject.launch(config).runner.close()
    plan = subject.plan(config)
    assert process.memory_info().rss - before <= 2 * plan.total_bytes + RSS_SLACK_BYTES
