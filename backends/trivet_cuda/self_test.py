"""Which kernels are compared with their twins: in `trivet selftest cuda` all, at start those of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES
from trivet.runners.op_check import OpCase, OpCheck, with_twins
from trivet.self_test import OpOutcome
from trivet_cuda.device import cure_for, is_fatal
from trivet_cuda.op_cases import TOLERANCES, CaseMaker, ModelShape
from trivet_cuda.op_table import TWINS, OpTable
from trivet_cuda.weight_kinds import WeightKind

if TYPE_CHECKING:
    from trivet_cuda.device import Device
    from trivet_cuda.memory_plan import Shape

FIRST_FP8 = 89  # architecture that converts float8
# Of well-known models: head sizes 64 to 256, groups of one, three, four and seven query heads.
FULL_SHAPES = (
    ModelShape(9, 3, 64, 576, 1536, 64),
    ModelShape(32, 8, 128, 4096, 2048, 128, has_qk_norm=True),
    ModelShape(14, 2, 64, 896, 1024, 64, kv_dtype="int8"),
    ModelShape(8, 8, 80, 640, 512, 32, interleaved=True),
    ModelShape(8, 4, 256, 2304, 1024, 256, window=200, soft_cap=50.0),
)
FP8_SHAPE = ModelShape(16, 4, 128, 1024, 512, 128, kv_dtype="fp8_e4m3")


def run_full(table: OpTable, device: Device) -> Iterator[OpOutcome]:
    """Every kernel in every shape and both 16-bit types; float8 where the device has it."""
    check = check_of(table)
    shapes = (*FULL_SHAPES, FP8_SHAPE) if device.arch >= FIRST_FP8 else FULL_SHAPES
    for dtype in (torch.bfloat16, torch.float16):
        for shape in shapes:
            kv = "" if shape.kv_dtype == "auto" else f", {shape.kv_dtype} KV"
            heads = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}{kv}"
            maker = CaseMaker(shape, dtype, device.torch_device, device.arch)
            for case in maker.cases():
                yield check.outcome(case, dtype, TOLERANCES[dtype], heads)
                if (
                    shape is FULL_SHAPES[0] and "write_kv" not in case.ops
                ):  # which fills a cache from the host
                    yield replayed(case, table, device, dtype)
        maker = CaseMaker(FULL_SHAPES[0], dtype, device.torch_device, device.arch)
        for case in maker.quantised_cases():
            yield check.outcome(case, dtype, TOLERANCES[dtype], "groups of 32")


def replayed(case: OpCase[OpTable], table: OpTable, device: Device, dtype: torch.dtype) -> OpOutcome:
    """The case captured in a graph, against itself run eagerly; both give the same bits."""

    def run() -> Tensor:
        return torch.cat([result.float().flatten() for result in case.run(table)])

    label, name = f"{case.label}, replayed from a graph", str(dtype).removeprefix("torch.")
    try:
        with torch.inference_mode():
            wanted = run()  # compiled before it is captured
            captured = device.capture(run)
            captured.output.zero_()
            captured.replay()
            error = float((captured.output - wanted).abs().max())
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as failure:
        text = str(failure)
        return OpOutcome(case.ops, label, name, float("inf"), 0.0, f"{text}{cure_for(text)}")
    return OpOutcome(case.ops, label, name, error if error == error else float("inf"), 0.0)


def check_of(table: OpTable) -> OpCheck[OpTable]:
    """Triton's compiler raises errors of its own; none of them is torch's lack of memory."""
    raises = (RuntimeError, AttributeError, TypeError, ValueError, *_compiler_errors())
    return OpCheck(table, TWINS, cure_for, raises, is_fatal)


def _compiler_errors() -> tuple[type[Exception], ...]:
    try:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError
    except ImportError:  # the twins alone
        return ()
    return (CompilationError, InterpreterError, OutOfResources, PTXASError)


def without_failing_ops(spec: ModelSpec, shape: Shape, table: OpTable, device: Device) -> OpTable:
    """`table` with the twins of what fails in this model's own shapes, one warning each."""
    if table == TWINS:
        return table
    return with_twins(table, TWINS, lambda: _model_outcomes(spec, shape, table, device), "cuda")


def _model_outcomes(spec: ModelSpec, shape: Shape, table: OpTable, device: Device) -> Iterator[OpOutcome]:
    dtype, check = DTYPES[shape.dtype], check_of(table)
    kinds = () if shape.options.weights == "plain" or shape.dtype == "f32" else tuple(WeightKind)
    kv_dtype = "auto" if shape.kv_dtype == shape.dtype else shape.kv_dtype
    for sizes in ModelShape.of_model(spec, kv_dtype=kv_dtype, block_size=shape.block_size):
        maker = CaseMaker(sizes, dtype, device.torch_device, device.arch)
        for case in (*maker.cases(), *maker.quantised_cases(kinds)):
            yield check.outcome(case, dtype, TOLERANCES[dtype], "this model")
