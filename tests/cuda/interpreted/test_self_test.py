"""A kernel that computes wrongly is found and replaced; those that stand here are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from trivet_cuda_interpreted.device import InterpretedDevice

from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.op_check import OpCase
from trivet_cuda import twins
from trivet_cuda.measures import Sizes, run_measures
from trivet_cuda.memory_plan import Shape
from trivet_cuda.op_cases import TOLERANCES, CaseMaker, ModelShape
from trivet_cuda.op_table import NAMES, OpTable, triton_table
from trivet_cuda.options import CudaOptions
from trivet_cuda.self_test import check_of, replayed, without_failing_ops

ATTENTION = Attention(4, 2, 32, 32**-0.5, Rope(32), qk_norm=Norm())
SPEC = ModelSpec("test", 96, 96, 64, 256, (Layer(ATTENTION, MLP(96)),), (0,), Norm())
SHAPE = Shape(
    dtype="bf16",
    kv_dtype="bf16",
    options=CudaOptions(),
    block_size=16,
    max_model_len=256,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    max_logits_rows=16,
    num_ranks=1,
)


@pytest.fixture(scope="module")
def table() -> OpTable:
    return triton_table()


def names_of_twins(table: OpTable) -> set[str]:
    return {name for name in NAMES if getattr(table, name) is getattr(twins, name)}


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp8_e4m3"])
def test_sound_kernels_stay(table: OpTable, kv_dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    shape = replace(SHAPE, kv_dtype=kv_dtype)
    assert without_failing_ops(SPEC, shape, table, InterpretedDevice()) == table
    assert not caplog.records


def slightly_off(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args) * 1.04


def raising(*args: Any) -> Tensor:
    raise RuntimeError("CUDA error: no kernel image is available")


FAULTS: dict[str, tuple[str, Callable[[OpTable], Callable[..., Any]]]] = {
    "attention is off by 4 %": ("decode_attention", lambda table: slightly_off(table.decode_attention)),
    "a kernel cannot be launched": ("extend_attention", lambda table: raising),
    "values become those of the keys": (
        "write_kv",
        lambda table: lambda k, v, kc, vc, ks, vs, slots: table.write_kv(k, k, kc, vc, ks, vs, slots),
    ),
    "the gate is forgotten": ("swiglu", lambda table: lambda x: x[:, x.shape[1] // 2 :].contiguous()),
    "the norm's weight is forgotten": (
        "rms_norm",
        lambda table: lambda x, w, eps, dtype: table.rms_norm(x, torch.ones_like(w), eps, dtype),
    ),
    "a result is not a number": ("group_matmul", lambda table: lambda *a: table.group_matmul(*a) * torch.nan),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_kernel_is_replaced_by_its_twin_with_a_warning(
    table: OpTable, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, broken = FAULTS[fault]
    faulty = replace(table, **{name: broken(table)})
    found = without_failing_ops(SPEC, SHAPE, faulty, InterpretedDevice())
    assert names_of_twins(found) == {name}
    assert f"op={name}" in caplog.text
    assert "trivet selftest cuda" in caplog.text


def test_float32_is_within_its_bound(table: OpTable) -> None:
    maker = CaseMaker(ModelShape(6, 2, 64, 96, 80, 64), torch.float32, torch.device("cpu"), 90)
    check = check_of(table)
    for case in (*maker.cases(), *maker.quantised_cases()):
        outcome = check.outcome(case, torch.float32, TOLERANCES[torch.float32], "test")
        assert outcome.passed, outcome


def test_a_case_replayed_from_a_graph_is_the_same(table: OpTable) -> None:
    maker = CaseMaker(ModelShape(6, 2, 64, 96, 80, 64), torch.bfloat16, torch.device("cpu"), 90)
    cases = [case for case in maker.cases() if "write_kv" not in case.ops]
    device = InterpretedDevice()
    outcomes = [replayed(case, table, device, torch.bfloat16) for case in cases]
    assert all(outcome.passed for outcome in outcomes), outcomes
    assert device.num_replayed == len(cases)


def test_a_case_that_cannot_be_captured_has_failed(table: OpTable) -> None:
    waiting = OpCase(("swiglu",), "waits", lambda ops: (torch.ones(2) * torch.ones(1).item(),))
    assert not replayed(waiting, table, InterpretedDevice(), torch.bfloat16).passed


def test_speeds_are_told_and_fail_nothing(table: OpTable) -> None:
    sizes = Sizes(decode_seqs=1, decode_tokens=64, extend_tokens=32, copied_bytes=1024, matrix=16, num_runs=1)
    decode, extend = run_measures(table, InterpretedDevice(), sizes)
    assert "GB/s" in decode.case
    assert "TFLOP/s" in extend.case
    assert decode.passed
    assert extend.passed
