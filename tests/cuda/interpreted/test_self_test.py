"""A kernel that computes wrongly is found and replaced; those that stand here are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from trivet_cuda_interpreted.device import InterpretedDevice

from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.op_check import OpCase
from trivet.weights.index import TensorInfo, WeightIndex
from trivet_cuda import twins
from trivet_cuda.measures import Sizes, run_measures
from trivet_cuda.memory_plan import Shape
from trivet_cuda.op_cases import TOLERANCES, CaseMaker, ModelShape, Product
from trivet_cuda.op_table import EXACT, NAMES, OpTable, triton_table
from trivet_cuda.options import CudaOptions
from trivet_cuda.self_test import (
    check_of,
    model_shapes,
    quantised_products,
    replayed,
    run_full,
    without_failing_ops,
)
from trivet_cuda.weight_kinds import WeightKind

ATTENTION = Attention(4, 2, 32, 32**-0.5, Rope(32), qk_norm=Norm())
SPEC = ModelSpec("test", 96, 96, 64, 256, (Layer(ATTENTION, MLP(96)),), (0,), Norm())
# Of the sizes only the formats are asked for.
FORMATS = {"q": "q4_0", "k": "q4_0", "v": "q4_0", "o": "q8_0", "gate": "q4_1", "up": "q4_0", "down": "q8_0"}
WEIGHTS = WeightIndex(
    tuple(
        TensorInfo(f"{name}.weight", (32, 32), kind, "weights", 0, 0)
        for name, kind in {
            "embed": "f32",
            "head": "f32",
            **{f"layers.0.{part}": kind for part, kind in FORMATS.items()},
        }.items()
    )
)
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
    assert without_failing_ops(SPEC, WEIGHTS, shape, table, InterpretedDevice()) == table
    assert not caplog.records


def slightly_off(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args) * 1.04


def scaled_at(result: Tensor, row: int, head: int, factor: float) -> Tensor:
    result = result.clone()
    result[row, head] *= factor
    return result


def shortened(lengths: Tensor, num_splits: int) -> Tensor:
    """As if the last of many splits were forgotten."""
    return (lengths - 64).clamp(min=0) if num_splits > 1 else lengths


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
    "one head of a long sequence is off by 10 %": (
        "decode_attention",
        lambda table: lambda *args: scaled_at(table.decode_attention(*args), -1, 3, 1.1),
    ),
    "one token of a chunk over a long prefix is off by 10 %": (
        "extend_attention",
        lambda table: lambda *args: scaled_at(table.extend_attention(*args), -2, 0, 1.1),
    ),
    "a split of many is left out": (
        "decode_attention",
        lambda table: (
            lambda *args: table.decode_attention(*args[:6], shortened(args[6], args[10]), *args[7:])
        ),
    ),
    "what is no number becomes one": (
        "write_kv",
        lambda table: (
            lambda k, v, kc, vc, ks, vs, slots: table.write_kv(k, v.nan_to_num(3.0), kc, vc, ks, vs, slots)
        ),
    ),
    "padding is written": (
        "write_kv",
        lambda table: (
            lambda k, v, kc, vc, ks, vs, slots: table.write_kv(k, v, kc, vc, ks, vs, slots.clamp(min=0))
        ),
    ),
    "a product of one shape is wrong": (
        "group_matmul",
        lambda table: lambda *a: table.group_matmul(*a) * (2.0 if len(a[2]) == 3 else 1.0),
    ),
    "a result is not a number": ("group_matmul", lambda table: lambda *a: table.group_matmul(*a) * torch.nan),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_kernel_is_replaced_by_its_twin_with_a_warning(
    table: OpTable, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, broken = FAULTS[fault]
    faulty = replace(table, **{name: broken(table)})
    shape, device = replace(SHAPE, max_model_len=1024), InterpretedDevice(num_sms=8)  # 2 and 4 splits
    found = without_failing_ops(SPEC, WEIGHTS, shape, faulty, device)
    assert names_of_twins(found) == {name}
    assert f"op={name}" in caplog.text
    assert "trivet selftest cuda" in caplog.text


@pytest.mark.parametrize("name", ["window", "soft cap"])
def test_a_window_and_a_cap_of_the_model_are_really_reached(table: OpTable, name: str) -> None:
    """A kernel that forgets them is found, also a window longer than the usual sequences of the test."""
    attention = replace(ATTENTION, qk_norm=None, window=600, soft_cap=30.0)
    spec = replace(SPEC, kinds=(Layer(attention, MLP(96)),))
    shape = replace(SHAPE, max_model_len=2048, options=CudaOptions(weights="plain"))
    assert without_failing_ops(spec, WEIGHTS, shape, table, InterpretedDevice()) == table
    at = {"window": -4, "soft cap": -3}[name]

    def forgetful(*args: Any) -> Tensor:
        changed = list(args)
        changed[at] = 0 if name == "window" else 0.0
        return table.decode_attention(*changed)

    faulty = replace(table, decode_attention=forgetful)
    found = without_failing_ops(spec, WEIGHTS, shape, faulty, InterpretedDevice())
    assert names_of_twins(found) == {"decode_attention"}


def test_splits_are_those_of_the_steps_that_will_come() -> None:
    shape = replace(SHAPE, max_model_len=32768, max_num_seqs=64)
    (sizes,) = model_shapes(SPEC, shape, num_sms=132)
    assert sizes.num_splits == (2, 4, 8, 16, 32)
    (sizes,) = model_shapes(SPEC, SHAPE, num_sms=2)
    assert sizes.num_splits == (1,)


def test_products_are_those_of_the_file_and_of_one_rank() -> None:
    wanted = {
        Product(WeightKind.W4A16, 64, 256),  # q, k and v
        Product(WeightKind.W8A16, 128, 64),  # o
        Product(WeightKind.W4A16, 64, 192),  # gate and up
        Product(WeightKind.W8A16, 96, 64),  # down
    }
    assert set(quantised_products(SPEC, WEIGHTS, SHAPE)) == wanted
    found = quantised_products(SPEC, WEIGHTS, replace(SHAPE, num_ranks=2))
    assert {(product.num_inner, product.num_columns) for product in found} == {
        (64, 128),
        (64, 64),
        (64, 96),
    }
    assert quantised_products(SPEC, WEIGHTS, replace(SHAPE, options=CudaOptions(weights="plain"))) == ()


def test_the_whole_self_test_compares_with_float64(table: OpTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the twins, whose sums are float32."""
    sizes = ModelShape(2, 1, 16, 32, 32, 16, num_splits=(1,))
    monkeypatch.setattr("trivet_cuda.self_test.FULL_SHAPES", (sizes,))
    monkeypatch.setattr("trivet_cuda.self_test.FP8_SHAPE", replace(sizes, kv_dtype="fp8_e4m3"))
    called: list[torch.dtype] = []

    def watched(*args: Any, exact: bool = False) -> Tensor:
        result = twins.swiglu(*args, exact=exact)
        called.append(result.dtype)
        return result

    monkeypatch.setattr("trivet_cuda.self_test.EXACT", replace(EXACT, swiglu=partial(watched, exact=True)))
    found = list(run_full(table, InterpretedDevice()))
    assert [outcome for outcome in found if not outcome.passed] == []
    assert called == [torch.float64] * 4  # of both types and both shapes
    exact = EXACT.swiglu(torch.ones(1, 2, dtype=torch.bfloat16))
    assert float(exact) == pytest.approx(0.7310585786300049, rel=1e-15)


def test_float32_is_within_its_bound_of_float64(table: OpTable) -> None:
    maker = CaseMaker(ModelShape(6, 2, 64, 96, 80, 64), torch.float32, torch.device("cpu"), 90)
    check = check_of(table, EXACT)
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


class Moved(TorchDispatchMode):
    """The sources of all copies, factors and caches."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name()
        if name in ("aten::copy_", "aten::mm", "aten::matmul"):
            self.sources.append(args[1])
        elif name.startswith("trivet_cuda::") and "attention" in name:
            self.sources += args[:3]
        return function(*args, **(kwargs or {}))


def test_speeds_are_told_and_fail_nothing(table: OpTable) -> None:
    """Of random values: zeros would be moved compressed."""
    sizes = Sizes(decode_seqs=1, decode_tokens=64, extend_tokens=32, copied_bytes=1024, matrix=16, num_runs=1)
    with Moved() as moved:
        found = list(run_measures(table, InterpretedDevice(), sizes))
    assert len(moved.sources) == 2 * (1 + 3 + 1 + 3)  # each once to be compiled
    assert all(len(source.unique()) > 5 for source in moved.sources)
    assert [(outcome.ops, list(outcome.measured)) for outcome in found] == [
        (("copy",), ["gb_per_s"]),
        (("decode_attention",), ["gb_per_s", "share_of_ceiling"]),
        (("product",), ["tflop_per_s"]),
        (("extend_attention",), ["tflop_per_s", "share_of_ceiling"]),
    ]
    assert all(outcome.passed and min(outcome.measured.values()) > 0 for outcome in found)
