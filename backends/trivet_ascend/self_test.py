"""Which cases of torch-npu's operations are compared: all for `trivet selftest ascend`, a part at start."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES
from trivet.runners.op_check import OpCheck, with_twins
from trivet.runners.op_sizes import OpSizes
from trivet.self_test import OpOutcome
from trivet_ascend.explanations import cure_for
from trivet_ascend.memory_plan import Shape
from trivet_ascend.op_cases import TOLERANCES, CaseMaker
from trivet_ascend.op_table import TWINS, OpTable

# Of well-known models: head size 64, 128, 192; a group of one, few and many query heads.
FULL_SHAPES = (
    OpSizes(9, 3, 64, 576, 1536, 64),
    OpSizes(32, 8, 128, 4096, 2048, 128),
    OpSizes(8, 8, 128, 1024, 1024, 64, interleaved=True),
    OpSizes(40, 2, 192, 1024, 512, 192),
)


def run_full(table: OpTable, device: torch.device) -> Iterator[OpOutcome]:
    """Every operation in every shape and both 16-bit types."""
    check = OpCheck(table, TWINS, cure_for)
    for dtype, allowed in TOLERANCES.items():
        for shape in FULL_SHAPES:
            heads = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}"
            for case in CaseMaker(shape, dtype, device).cases():
                yield check.told(case, dtype, allowed, heads)
        maker = CaseMaker(FULL_SHAPES[0], dtype, device)
        for weights in ("w8a8", "w4a16"):
            for case in maker.quantised_cases(weights):
                yield check.told(case, dtype, allowed, weights)


def without_failing_ops(spec: ModelSpec, shape: Shape, table: OpTable, device: torch.device) -> OpTable:
    """`table` with the twins of what fails in this model's own shapes, one warning each."""
    return with_twins(table, TWINS, lambda: _model_outcomes(spec, shape, table, device), "ascend")


def _model_outcomes(
    spec: ModelSpec, shape: Shape, table: OpTable, device: torch.device
) -> Iterator[OpOutcome]:
    dtype, check = DTYPES[shape.dtype], OpCheck(table, TWINS, cure_for)
    for layer, sizes in zip(spec.kinds, OpSizes.of_model(spec), strict=True):
        is_fused = shape.options.why_gathered(layer.attention, shape.dtype, shape.max_model_len) is None
        maker = CaseMaker(sizes, dtype, device)
        for case in (*maker.cases(attention=is_fused), *maker.quantised_cases(shape.options.weights)):
            yield check.outcome(case, dtype, TOLERANCES[dtype], "this model")
