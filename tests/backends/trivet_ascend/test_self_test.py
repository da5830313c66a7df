"""The self-test passes where operations are right, and finds the errors that are known of real devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from trivet_ascend_emulated.operators import define_operators

from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.op_check import OpCheck
from trivet.runners.op_sizes import OpSizes
from trivet.self_test import OpOutcome
from trivet_ascend import npu_ops
from trivet_ascend.explanations import cure_for
from trivet_ascend.memory_plan import Shape
from trivet_ascend.op_cases import TOLERANCES, CaseMaker
from trivet_ascend.op_table import NPU, TWINS, OpTable
from trivet_ascend.options import AscendOptions
from trivet_ascend.self_test import without_failing_ops

CPU = torch.device("cpu")
SIZES = OpSizes(4, 2, 64, 128, 192, 64)
SPEC = ModelSpec(
    "Test", 64, 64, 128, 1024, (Layer(Attention(4, 2, 64, 0.125, Rope(64)), MLP(192)),), (0,), Norm()
)


@pytest.fixture(autouse=True, scope="module")
def emulator() -> None:
    define_operators()


def outcomes(table: OpTable, dtype: torch.dtype = torch.bfloat16) -> list[OpOutcome]:
    maker = CaseMaker(SIZES, dtype, CPU)
    cases = [*maker.cases(), *maker.quantised_cases("w8a8"), *maker.quantised_cases("w4a16")]
    check = OpCheck(table, TWINS, cure_for)
    return [check.outcome(case, dtype, TOLERANCES[dtype], "test") for case in cases]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_operation_agrees_with_its_twin_on_the_emulator(dtype: torch.dtype) -> None:
    found = outcomes(NPU, dtype)
    assert [outcome for outcome in found if not outcome.passed] == []
    tested = {op for outcome in found for op in outcome.ops}
    assert tested == set(OpTable.__dataclass_fields__)


def uniform(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, *rest: Any) -> Tensor:
    """The average of all values, as one stack gave it (vllm-ascend #13699)."""
    return npu_ops.fused_attention(torch.zeros_like(query), keys, values, table, *rest)


def blind_past_512(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, *rest: Any) -> Tensor:
    """Keys from 512 on are not seen (#15503)."""
    ends, lens, mask, scale = rest
    shortened = [max(min(length, 512), 1) for length in lens]
    return TWINS.fused_attention(query, keys, values, table, ends, shortened, mask, scale)


def reads_behind_the_end(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, *rest: Any) -> Tensor:
    """0 times NaN is NaN: slots past a sequence's end are multiplied by 0 instead of left out."""
    out = TWINS.fused_attention(query, keys, values, table, *rest)
    return out + values[table[:, -1].long()].sum() * 0


def shifted_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    values, scales = TWINS.quantise_rows(x)
    return values, scales.roll(1)


def failing(*arguments: Any) -> Tensor:
    raise RuntimeError("aclnnFusedInferAttentionScore failed: 561002 queryD(64) must be same")


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("fused_attention", uniform),
        ("fused_attention", blind_past_512),
        ("fused_attention", reads_behind_the_end),
        ("fused_attention", failing),
        ("rms_norm", lambda x, weight, eps: TWINS.rms_norm(x, weight, 0.3)),
        ("add_rms_norm", lambda x, residual, weight, eps: (TWINS.rms_norm(x, weight, eps), x + residual)),
        ("rotate", lambda x, cos, sin, interleaved: TWINS.rotate(x, cos, sin, not interleaved)),
        ("swiglu", lambda x: TWINS.swiglu(x.roll(x.shape[-1] // 2, -1))),
        ("quantise_rows", shifted_scales),
        ("pack_int4", lambda values: TWINS.pack_int4(values.flip(-1))),
        ("matmul_w8a8", lambda *rest: TWINS.matmul_w8a8(*rest) * 1.05),
        ("write_kv", lambda key, value, keys, values, slots: TWINS.write_kv(value, key, keys, values, slots)),
    ],
)
def test_a_wrong_operation_is_found(op: str, wrong: Callable[..., Any]) -> None:
    found = outcomes(replace(TWINS, **{op: wrong}))
    assert {name for outcome in found if not outcome.passed for name in outcome.ops} >= {op}


def shape_of(**options: str) -> Shape:
    return Shape(
        dtype="bf16",
        options=AscendOptions.parse(options),
        block_size=128,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_logits_rows=64,
        num_ranks=1,
    )


def test_at_start_a_failing_operation_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    table = replace(NPU, fused_attention=failing, swiglu=lambda x: x)
    with caplog.at_level(logging.WARNING):
        mended = without_failing_ops(SPEC, shape_of(), table, CPU)
    assert mended == replace(NPU, fused_attention=TWINS.fused_attention, swiglu=TWINS.swiglu)
    assert "options.attention=gather" in caplog.text, "with the cure of the code 561002"


def test_at_start_sound_operations_stay_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert without_failing_ops(SPEC, shape_of(weights="w8a8"), NPU, CPU) == NPU
    assert caplog.text == ""


def test_attention_that_is_gathered_anyway_is_not_tested() -> None:
    table = replace(NPU, fused_attention=failing)
    assert without_failing_ops(SPEC, shape_of(attention="gather"), table, CPU) == table
