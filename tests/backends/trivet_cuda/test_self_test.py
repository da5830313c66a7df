"""The whole self-test where a kernel fails, over the twins on the CPU: the other cases go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trivet.errors import DeviceLost
from trivet.self_test import OpOutcome
from trivet_cuda import device_sampler, measures, self_test
from trivet_cuda.backend import SELF_TEST_S
from trivet_cuda.op_cases import ModelShape
from trivet_cuda.op_table import TWINS, OpTable
from trivet_cuda.sampler_check import Draws, run_sampler_check

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CpuDevice

SIZES = ModelShape(2, 1, 16, 32, 32, 16, num_splits=(1,), products=())
SPEEDS = measures.Sizes(1, 64, 32, 1024, 16, 1)


class Cpu(CpuDevice):
    """Nothing is captured, and it has no float8."""

    arch = 80

    def __init__(self) -> None:
        super().__init__(refuses="operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "FULL_SHAPES", (SIZES,))


def failing(error: Exception) -> OpTable:
    def decode(*args: Any) -> Tensor:
        raise error

    return replace(TWINS, decode_attention=decode)


def outcomes(table: OpTable) -> Iterator[OpOutcome]:
    yield from self_test.run_full(table, Cpu())
    yield from measures.run_measures(table, Cpu(), SPEEDS)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Triton Error [CUDA]: invalid argument"), torch.OutOfMemoryError("CUDA out of memory")],
    ids=str,
)
def test_a_kernel_that_cannot_run_fails_its_cases_and_its_speed_alone(error: Exception) -> None:
    found = [outcome for outcome in outcomes(failing(error)) if "replayed" not in outcome.case]
    failed = [outcome for outcome in found if not outcome.passed]
    assert {outcome.ops for outcome in failed} == {("decode_attention",)}
    assert len(failed) == 3  # of both types, and its speed
    assert all(str(error) in outcome.failure for outcome in failed)
    assert [outcome.ops[0] for outcome in found[-4:]] == [
        "copy",
        "decode_attention",
        "product",
        "extend_attention",
    ]


def test_a_kernel_s_speed_is_told_beside_what_the_device_does_at_best() -> None:
    found = {each.ops[0]: each.measured for each in measures.run_measures(TWINS, Cpu(), SPEEDS)}
    for kernel, ceiling, unit in (
        ("decode_attention", "copy", "gb_per_s"),
        ("extend_attention", "product", "tflop_per_s"),
    ):
        share = found[kernel][unit] / found[ceiling][unit]
        assert found[kernel]["share_of_ceiling"] == pytest.approx(share)


def test_the_self_test_ends_in_the_time_that_it_promises() -> None:
    """What is left is told as such, and has failed."""
    passed = OpOutcome(("op",), "a case", "bfloat16", 0.0, 0.1)
    now = iter((0.0, 4.0, 9.0, 11.0, 12.0))
    *before, last = self_test.within(10.0, iter([passed] * 9), ("self-test",), lambda: next(now))
    assert before == [passed] * 3
    assert not last.passed
    assert last.case == "what comes after 3 cases did not run"
    assert last.failure.startswith("10 s are up")
    assert list(self_test.within(10.0, iter([passed]), ("op",), lambda: 0.0)) == [passed]
    assert sum(SELF_TEST_S.values()) < 300


def test_arguments_that_do_not_fit_fail_what_is_left_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def rope(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(self_test.CaseMaker, "_rope", rope)
    found = list(self_test.run_full(TWINS, Cpu()))
    last = [outcome for outcome in found if outcome.ops == ("self-test",)]
    assert [outcome.dtype for outcome in last] == ["bfloat16", "float16"]
    assert all("all that is left of 2/1 heads of 16" in outcome.case for outcome in last)


DRAWS = Draws(num_rows=6, num_tokens=500, num_runs=2)


def test_the_sampler_is_compared_with_the_reference_as_it_is_and_edited() -> None:
    plain, edited = run_sampler_check(Cpu(), DRAWS)
    assert plain.passed
    assert edited.passed
    assert plain.case == "6 rows of 500, every limit"
    assert edited.case.endswith("edits and masks")
    assert {*plain.measured} == {*edited.measured} == {"draw_ms"}


@pytest.mark.parametrize("part", ["_floors", "_edited"])
def test_a_sampler_that_draws_other_tokens_fails_its_case(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """With nothing left but the most likely both cases; without edits and masks the second alone."""
    if part == "_floors":
        monkeypatch.setattr(device_sampler, part, lambda values, *_: torch.zeros(len(values)))
    else:
        monkeypatch.setattr(device_sampler, part, lambda logits, *_: logits)
    found = [each.passed for each in run_sampler_check(Cpu(), DRAWS)]
    assert found == ([False, False] if part == "_floors" else [True, False])


def test_a_device_beyond_use_ends_the_test_with_the_operation_named() -> None:
    found = outcomes(failing(RuntimeError("CUDA error: an illegal memory access")))
    assert next(found).ops == ("write_kv",)
    with pytest.raises(DeviceLost, match="decode_attention"):
        next(found)
