"""Compares torch-npu's operations with their twins: the whole for `trivet selftest ascend`, a part at start.

An operation that raises, gives what is not a number or strays too far has failed. At the start of an
engine it is replaced by its twin, which is slow and right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trivet.models.spec import MLP, ModelSpec
from trivet.models.torch_ops import DTYPES
from trivet_ascend.explanations import cure_for
from trivet_ascend.memory_plan import Shape
from trivet_ascend.op_cases import TOLERANCES, CaseMaker, ModelShape, OpCase
from trivet_ascend.op_table import TWINS, OpTable

logger = logging.getLogger(__name__)

# Of well-known models: head size 64, 128, 192; a group of one, few and many query heads.
FULL_SHAPES = (
    ModelShape(9, 3, 64, 576, 1536, 64),
    ModelShape(32, 8, 128, 4096, 2048, 128),
    ModelShape(8, 8, 128, 1024, 1024, 64, interleaved=True),
    ModelShape(40, 2, 192, 1024, 512, 192),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case. `error` is over the largest value of the twin's result; inf where it is not a number."""

    ops: tuple[str, ...]
    case: str
    dtype: str
    error: float
    allowed: float
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure and self.error <= self.allowed


def run_full(table: OpTable, device: torch.device) -> Iterator[Outcome]:
    """Every operation in every shape and both 16-bit types."""
    for dtype in TOLERANCES:
        for shape in FULL_SHAPES:
            maker = CaseMaker(shape, dtype, device)
            for case in maker.cases():
                heads = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}"
                yield run_case(case, table, dtype, heads)
        maker = CaseMaker(FULL_SHAPES[0], dtype, device)
        for weights in ("w8a8", "w4a16"):
            for case in maker.quantised_cases(weights):
                yield run_case(case, table, dtype, weights)


def run_case(case: OpCase, table: OpTable, dtype: torch.dtype, where: str) -> Outcome:
    """Results by `table` against those of the twins."""
    label, name, allowed = f"{case.label} ({where})", str(dtype).removeprefix("torch."), TOLERANCES[dtype]
    try:
        found = [result.float().cpu() for result in case.run(table)]
    except torch.OutOfMemoryError:
        raise  # says nothing about the operation
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        reason = f"{error}{cure_for(str(error))}".strip()
        return Outcome(case.ops, label, name, float("inf"), allowed, reason)
    wanted = [result.float().cpu() for result in case.run(TWINS)]
    shapes = [[list(result.shape) for result in results] for results in (found, wanted)]
    if shapes[0] != shapes[1]:
        reason = f"results are of shapes {shapes[0]} and not {shapes[1]}"
        return Outcome(case.ops, label, name, float("inf"), allowed, reason)
    errors = [
        float((one - two).abs().max() / two.abs().max().clamp(min=1e-6))
        for one, two in zip(found, wanted, strict=True)
    ]
    worst = max(float("inf") if value != value else value for value in errors)
    return Outcome(case.ops, label, name, worst, allowed)


def without_failing_ops(spec: ModelSpec, shape: Shape, table: OpTable, device: torch.device) -> OpTable:
    """`table` with the twins of what fails in this model's own shapes, one warning each."""
    dtype, failed = DTYPES[shape.dtype], dict[str, Outcome]()
    for layer in spec.kinds:
        assert isinstance(layer.mlp, MLP)  # check_dense
        attention, rope = layer.attention, layer.attention.rope
        sizes = ModelShape(
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
            spec.hidden_size,
            layer.mlp.intermediate_size,
            rope.dim if rope else attention.head_dim,
            rope.interleaved if rope else False,
        )
        is_fused = shape.options.why_gathered(attention, shape.dtype, shape.max_model_len) is None
        maker = CaseMaker(sizes, dtype, device)
        with torch.inference_mode():
            for case in (*maker.cases(attention=is_fused), *maker.quantised_cases(shape.options.weights)):
                outcome = run_case(case, table, dtype, "this model")
                if not outcome.passed:
                    failed.update(dict.fromkeys(outcome.ops, outcome))
    for op, outcome in failed.items():
        logger.warning(
            "op=%s failed its self-test, case=%r error=%.3g allowed=%.3g %s; its twin in plain torch runs "
            "instead, slower; `trivet selftest ascend` tells more",
            op,
            outcome.case,
            outcome.error,
            outcome.allowed,
            outcome.failure,
        )
    return table.with_twins(failed)
