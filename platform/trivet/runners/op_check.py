"""Compares a device's operations with their twins in plain torch: the self-test, whole and at start.

An operation that raises, gives what is not a number or strays too far has failed. At the start of an
engine it is replaced by its twin, which is slow and right.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from trivet.errors import BackendError, DeviceLost
from trivet.self_test import OpOutcome

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger(__name__)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
Table = TypeVar("Table", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class OpCase(Generic[Table]):
    """`run` gives the results by the functions of a backend's table; `ops` are what it calls."""

    ops: tuple[str, ...]
    label: str
    run: Callable[[Table], Sequence[Tensor]]
    wanted: Callable[[], Sequence[Tensor]] | None = None  # where it is known without the twins
    allowed: float | None = None  # where it is another than that of the dtype


@dataclass(frozen=True, slots=True)
class OpCheck(Generic[Table]):
    """How a backend's operations are compared."""

    table: Table
    twins: Table  # what is right
    cure_for: Callable[[str], str] = lambda text: ""  # "; " and what to do about an error
    # What a refused call raises; a compiler may have errors of its own.
    raises: tuple[type[Exception], ...] = (RuntimeError, AttributeError, TypeError)
    # Whether the device is beyond use after an error, so that no twin can run there either.
    is_fatal: Callable[[Exception], bool] = lambda error: False

    def outcome(self, case: OpCase[Table], dtype: torch.dtype, allowed: float, where: str) -> OpOutcome:
        """The case by `table` and by `twins`.

        Raises: torch.OutOfMemoryError; DeviceLost naming the operation that left the device beyond use;
            BackendError where what a compiler makes can be kept nowhere.
        """
        label, name = f"{case.label} ({where})", str(dtype).removeprefix("torch.")
        allowed = allowed if case.allowed is None else case.allowed
        try:
            found = [result.cpu() for result in case.run(self.table)]
        except torch.OutOfMemoryError:
            raise  # says nothing about the operation
        except self.raises as error:
            if self.is_fatal(error):
                raise DeviceLost(
                    f"{'+'.join(case.ops)} ({label}) left the device beyond use in its self-test: "
                    f"{error}{self.cure_for(str(error))}"
                ) from error
            if isinstance(error, OSError) and error.errno in NOT_WRITABLE:  # it would be so for each of them
                raise BackendError(
                    f"compiled operations cannot be kept: {error}; the account of the engine needs a home "
                    "folder that it can write, or TRITON_CACHE_DIR one with room"
                ) from error
            reason = f"{error}{self.cure_for(str(error))}".strip() or type(error).__name__
            return OpOutcome(case.ops, label, name, float("inf"), allowed, reason)
        right = case.run(self.twins) if case.wanted is None else case.wanted()
        wanted = [result.cpu() for result in right]
        shapes = [[list(result.shape) for result in results] for results in (found, wanted)]
        if shapes[0] != shapes[1]:
            reason = f"results are of shapes {shapes[0]} and not {shapes[1]}"
            return OpOutcome(case.ops, label, name, float("inf"), allowed, reason)
        errors = [largest_error(one, two) for one, two in zip(found, wanted, strict=True)]
        return OpOutcome(case.ops, label, name, max(errors), allowed)

    def told(self, case: OpCase[Table], dtype: torch.dtype, allowed: float, where: str) -> OpOutcome:
        """As `outcome`, for a report: lack of memory has failed this case, and the others go on.

        Raises: DeviceLost.
        """
        try:
            return self.outcome(case, dtype, allowed, where)
        except torch.OutOfMemoryError as error:
            name = str(dtype).removeprefix("torch.")
            return OpOutcome(case.ops, f"{case.label} ({where})", name, float("inf"), allowed, str(error))


def largest_error(found: Tensor, wanted: Tensor) -> float:
    """Of a row (the last axis), the largest error over the largest value wanted there; the worst row's.

    Over the largest value of the whole result a head, or a long sequence whose averages are small, could be
    wrong altogether beside a short one. inf where it is no number.
    """
    if not wanted.numel():
        return 0.0
    found, wanted = found.cpu().double(), wanted.cpu().double()
    errors = (found - wanted).abs().amax(-1) / wanted.abs().amax(-1).clamp(min=1e-6)
    error = float(errors.max())
    return float("inf") if error != error else error


def failing_ops(outcomes: Iterable[OpOutcome]) -> Mapping[str, OpOutcome]:
    """The operations of all failed cases, each with one of them."""
    failed: dict[str, OpOutcome] = {}
    for outcome in outcomes:
        if not outcome.passed:
            failed.update(dict.fromkeys(outcome.ops, outcome))
    return failed


def warn_of(failed: Mapping[str, OpOutcome], backend: str) -> None:
    """One line an operation, for the log of an engine that starts without them."""
    for op, outcome in failed.items():
        logger.warning(
            "op=%s failed its self-test, case=%r error=%.3g allowed=%.3g %s; its twin in plain torch runs "
            "instead, slower; `trivet selftest %s` tells more",
            op,
            outcome.case,
            outcome.error,
            outcome.allowed,
            outcome.failure,
            backend,
        )


def with_twins(
    table: Table, twins: Table, outcomes: Callable[[], Iterable[OpOutcome]], backend: str
) -> Table:
    """`table` with the twins of what fails in `outcomes`, one warning each."""
    with torch.inference_mode():
        failed = failing_ops(outcomes())
    warn_of(failed, backend)
    return replace(table, **{name: getattr(twins, name) for name in failed})


def twin_notices(wanted: DataclassInstance, used: DataclassInstance, backend: str) -> tuple[str, ...]:
    """For `trivet ps`: one sentence for each operation of the table `wanted` that `used` replaces."""
    return tuple(
        f"{field.name} failed its self-test at start and its twin in plain torch runs instead, slower; "
        f"`trivet logs` has the case, `trivet selftest {backend}` tells more"
        for field in fields(wanted)
        if getattr(wanted, field.name) is not getattr(used, field.name)
    )
