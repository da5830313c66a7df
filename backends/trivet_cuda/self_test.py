"""Which kernels are compared: in `trivet selftest cuda` all, with float64; at start those of the model.

At start the twins in float32 are what is right, since they are what would run instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trivet.errors import DeviceLost
from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES
from trivet.runners.model_matrices import packed_matrices
from trivet.runners.op_check import OpCase, OpCheck, with_twins
from trivet.runners.slices import Rank, local_spec
from trivet.self_test import OpOutcome
from trivet.weights.index import WeightIndex
from trivet_cuda.backend import FIRST_FP8
from trivet_cuda.failures import compiler_errors, cure_for, is_fatal
from trivet_cuda.op_cases import TOLERANCES, CaseMaker, ModelShape, Product
from trivet_cuda.op_table import EXACT, TWINS, OpTable
from trivet_cuda.tiles import decode_splits
from trivet_cuda.weight_kinds import WeightKind, kind_of

if TYPE_CHECKING:
    from trivet_cuda.device import Device
    from trivet_cuda.memory_plan import Shape

# Of well-known models: head sizes 64 to 256, groups of one, three, four and seven query heads.
FULL_SHAPES = (
    ModelShape(9, 3, 64, 576, 1536, 64),
    ModelShape(32, 8, 128, 4096, 2048, 128, has_qk_norm=True),
    ModelShape(14, 2, 64, 896, 1024, 64, kv_dtype="int8", num_splits=(1, 2, 8, 16, 32)),
    ModelShape(8, 8, 80, 640, 512, 32, interleaved=True),
    ModelShape(8, 4, 256, 2304, 1024, 256, window=200, soft_cap=50.0),
)
FP8_SHAPE = ModelShape(16, 4, 128, 1024, 512, 128, kv_dtype="fp8_e4m3")


def run_full(table: OpTable, device: Device) -> Iterator[OpOutcome]:
    """Every kernel against float64 in every shape and both 16-bit types; float8 where the device has it."""
    shapes = (*FULL_SHAPES, FP8_SHAPE) if device.arch >= FIRST_FP8 else FULL_SHAPES
    for dtype in (torch.bfloat16, torch.float16):
        for shape in shapes:
            kv = "" if shape.kv_dtype == "auto" else f", {shape.kv_dtype} KV"
            heads = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}{kv}"
            of_shape = _outcomes_of(shape, heads, table, device, dtype)
            yield from guarded(of_shape, ("self-test",), f"all that is left of {heads}", dtype)


def _outcomes_of(
    shape: ModelShape, heads: str, table: OpTable, device: Device, dtype: torch.dtype
) -> Iterator[OpOutcome]:
    check = check_of(table, EXACT)
    maker, is_first = CaseMaker(shape, dtype, device.torch_device, device.arch), shape is FULL_SHAPES[0]
    for case in maker.cases():
        yield check.told(case, dtype, TOLERANCES[dtype], heads)
        if is_first and "write_kv" not in case.ops:  # which fills a cache from the host
            yield replayed(case, table, device, dtype)
    for case in maker.quantised_cases() if is_first else ():
        yield check.told(case, dtype, TOLERANCES[dtype], "groups of 32")


def guarded(
    outcomes: Iterator[OpOutcome], ops: tuple[str, ...], case: str, dtype: torch.dtype
) -> Iterator[OpOutcome]:
    """An error of torch or of Triton's compiler is a last case that has failed.

    Raises: DeviceLost where nothing can run after it.
    """
    errors: tuple[type[Exception], ...] = (RuntimeError, *compiler_errors())
    try:
        yield from outcomes
    except errors as error:
        text = f"{type(error).__name__}: {error}{cure_for(str(error))}"
        if is_fatal(error):
            raise DeviceLost(f"{'+'.join(ops)} ({case}) left the device beyond use: {text}") from error
        yield OpOutcome(ops, case, str(dtype).removeprefix("torch."), float("inf"), 0.0, text)


def within(
    limit_s: float,
    outcomes: Iterator[OpOutcome],
    ops: tuple[str, ...],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[OpOutcome]:
    """Where time is up, what is left is a last case that has failed: a report comes in the promised time."""
    began_s = clock()
    for count, outcome in enumerate(outcomes, 1):
        yield outcome
        if clock() - began_s > limit_s:
            reason = f"{limit_s:.0f} s are up; run it again: kernels that were compiled are kept"
            case = f"what comes after {count} cases did not run"
            yield OpOutcome(ops, case, "", float("inf"), 0.0, reason)
            return


def replayed(case: OpCase[OpTable], table: OpTable, device: Device, dtype: torch.dtype) -> OpOutcome:
    """The case captured in a graph, against itself run eagerly; both give the same bits."""

    def run() -> Tensor:
        return torch.cat([result.float().flatten() for result in case.run(table)])

    label, name = f"{case.label}, replayed from a graph", str(dtype).removeprefix("torch.")

    def compared() -> Iterator[OpOutcome]:
        with torch.inference_mode():
            wanted = run()  # compiled before it is captured
            captured = device.capture(run)
            captured.output.zero_()
            captured.replay()
            error = float((captured.output - wanted).abs().max())
        yield OpOutcome(case.ops, label, name, error if error == error else float("inf"), 0.0)

    (outcome,) = guarded(compared(), case.ops, label, dtype)
    return outcome


def check_of(table: OpTable, right: OpTable = TWINS) -> OpCheck[OpTable]:
    """Triton's compiler raises errors of its own; none of them is torch's lack of memory.

    Its driver asserts that it finds libcuda.so.
    """
    raises = (RuntimeError, AttributeError, TypeError, ValueError, AssertionError, *compiler_errors())
    return OpCheck(table, right, cure_for, raises, is_fatal)


def without_failing_ops(
    spec: ModelSpec, weights: WeightIndex, shape: Shape, table: OpTable, device: Device
) -> OpTable:
    """`table` with the twins of what fails in the shapes of this model, whole; one warning each."""
    if table == TWINS:
        return table
    outcomes = partial(_model_outcomes, spec, weights, shape, table, device)
    return with_twins(table, TWINS, outcomes, "cuda")


def _model_outcomes(
    spec: ModelSpec, weights: WeightIndex, shape: Shape, table: OpTable, device: Device
) -> Iterator[OpOutcome]:
    dtype, check = DTYPES[shape.dtype], check_of(table)
    products = quantised_products(spec, weights, shape)
    for sizes in model_shapes(spec, shape, device.num_sms):
        maker = CaseMaker(replace(sizes, products=products), dtype, device.torch_device, device.arch)
        products = ()  # they are the whole model's
        for case in (*maker.cases(), *maker.quantised_cases()):
            yield check.outcome(case, dtype, TOLERANCES[dtype], "this model")


def model_shapes(spec: ModelSpec, shape: Shape, num_sms: int) -> Iterator[ModelShape]:
    """Of each kind of layer of one rank, with every number of splits that its steps will have."""
    local = local_spec(spec, shape.num_ranks)
    kv_dtype = "auto" if shape.kv_dtype == shape.dtype else shape.kv_dtype
    own = {"kv_dtype": kv_dtype, "block_size": shape.block_size, "max_model_len": shape.max_model_len}
    for sizes in ModelShape.of_model(local, **own):
        splits = {
            decode_splits(bucket, sizes.num_kv_heads, shape.max_model_len, num_sms)
            for bucket in shape.buckets
        }
        yield replace(sizes, num_splits=tuple(sorted(splits)))


def quantised_products(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> tuple[Product, ...]:
    """Of the matrices that one rank keeps in the 4 or 8 bits of their files."""
    rank, found = Rank(0, shape.num_ranks), set()
    for matrix in packed_matrices(spec):
        formats = [weights[f"{part}.weight"].format for part in matrix.parts]
        rows, columns = matrix.num_rows, matrix.num_columns
        rows = rank.height(rows) if matrix.shard == "column" else rows
        columns = rank.height(columns) if matrix.shard == "row" else columns
        kind = kind_of(shape.options.weights, shape.dtype, matrix.name, formats, columns)
        if kind != WeightKind.PLAIN:
            found.add(Product(kind, columns, rows))
    return tuple(sorted(found))
