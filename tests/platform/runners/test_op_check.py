"""What counts as a failed operation, and what becomes of it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from trivet.errors import BackendError
from trivet.runners.op_check import OpCase, OpCheck, failing_ops, twin_notices, warn_of
from trivet.self_test import OpOutcome

Table = Callable[[], Tensor]
WANTED = torch.tensor([4.0, -2.0])


def outcome(
    op: Table, twin: Table = lambda: WANTED, raises: tuple[type[Exception], ...] = (RuntimeError,)
) -> OpOutcome:
    case: OpCase[Table] = OpCase(("op",), "a case", lambda table: (table(),))
    check = OpCheck(op, twin, lambda text: "; its cure" if "561002" in text else "", raises)
    return check.outcome(case, torch.bfloat16, 0.02, "here")


def test_an_error_is_over_the_largest_value_of_the_twin() -> None:
    found = outcome(lambda: torch.tensor([4.0, -2.1]))
    assert found.error == pytest.approx(0.1 / 4)
    assert not found.passed
    assert outcome(lambda: torch.tensor([4.0, -2.05])).passed
    assert (found.case, found.dtype) == ("a case (here)", "bfloat16")


def test_a_wrong_row_shows_beside_one_of_large_values() -> None:
    wanted = torch.tensor([[100.0, 1.0], [0.1, 0.01]])
    found = outcome(lambda: wanted + torch.tensor([[0.0, 0.0], [0.05, 0.0]]), lambda: wanted)
    assert found.error == pytest.approx(0.5)
    assert not found.passed


def test_what_is_known_without_the_twin_is_right_and_may_have_a_bound_of_its_own() -> None:
    def case(allowed: float | None) -> OpOutcome:
        given: OpCase[Table] = OpCase(("op",), "a case", lambda table: (table(),), lambda: [WANTED], allowed)
        check = OpCheck(lambda: WANTED * 1.01, lambda: pytest.fail("the twin is not asked"))
        return check.outcome(given, torch.bfloat16, 0.02, "here")

    assert case(None).passed
    assert not case(0.005).passed


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_has_failed(value: float) -> None:
    found = outcome(lambda: torch.tensor([4.0, value]))
    assert found.error == float("inf")
    assert not found.passed


def test_a_result_of_another_shape_has_failed() -> None:
    assert "shapes [[1, 2]] and not [[2]]" in outcome(lambda: WANTED[None]).failure


def test_an_operation_that_raises_has_failed_with_its_words_and_a_cure() -> None:
    def refused() -> Tensor:
        raise RuntimeError("error code is 561002")

    assert outcome(refused).failure == "error code is 561002; its cure"


def test_a_compiler_that_can_keep_nothing_ends_the_start() -> None:
    """Each operation would fail so, and an engine of twins alone would serve at a tenth of the speed."""

    def refused() -> Tensor:
        raise PermissionError(errno.EACCES, "Permission denied", "/home/trivet")

    def missing() -> Tensor:
        raise FileNotFoundError(errno.ENOENT, "No such file", "gcc")

    with pytest.raises(BackendError, match=r"cannot be kept: .*'/home/trivet'; .* home folder"):
        outcome(refused, raises=(OSError,))
    assert "gcc" in outcome(missing, raises=(OSError,)).failure


def test_lack_of_memory_says_nothing_about_an_operation() -> None:
    def full() -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        outcome(full)


def test_every_operation_of_a_failed_case_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    failed = failing_ops(
        [
            OpOutcome(("pack", "multiply"), "4 bits", "f16", 0.5, 0.1),
            OpOutcome(("norm",), "nine tokens", "f16", 0.05, 0.1),
        ]
    )
    assert set(failed) == {"pack", "multiply"}
    with caplog.at_level(logging.WARNING):
        warn_of(failed, "npu")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["op=pack", "op=multiply"]
    assert "`trivet selftest npu` tells more" in caplog.text


@dataclass(frozen=True)
class Operations:
    norm: Callable[[], None]
    pack: Callable[[], None]


def test_an_operator_is_told_of_what_was_replaced_and_of_nothing_else() -> None:
    wanted = Operations(lambda: None, lambda: None)
    assert twin_notices(wanted, replace(wanted), "npu") == ()
    (notice,) = twin_notices(wanted, replace(wanted, pack=lambda: None), "npu")
    assert notice.startswith("pack failed its self-test at start")
    assert "`trivet selftest npu`" in notice
