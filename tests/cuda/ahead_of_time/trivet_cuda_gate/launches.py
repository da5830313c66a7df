"""Which kernels the backend launches for given shapes, as Triton itself would compile them.

The product's own functions are called, on the CPU's tensors, and Triton's own binder finds types, constants
and the divisibility of pointers and strides; in place of compiling for the card at hand and running, each
launch is noted. Sizes are those of known models: another model's may be compiled otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature
from trivet_cuda_gate.cubin import Usage, read_usage

from trivet.runners.op_check import OpCase
from trivet_cuda.backend import FIRST_FP8
from trivet_cuda.op_cases import CaseMaker, ModelShape
from trivet_cuda.op_table import NAMES, OpTable, triton_table

# The loop over keys is the same for any number of splits: all of them for one shape.
shaped = partial(ModelShape, num_splits=(4,))
SHAPES = (
    shaped(9, 3, 64, 576, 1536, 64),
    ModelShape(32, 8, 128, 4096, 2048, 128, has_qk_norm=True, num_splits=(1, 2, 4, 8, 16, 32)),
    shaped(8, 8, 96, 768, 512, 32, interleaved=True),
    shaped(8, 4, 256, 2304, 1024, 256, window=200, soft_cap=50.0),
    shaped(14, 2, 64, 896, 1024, 64, kv_dtype="int8"),
    ModelShape(32, 8, 128, 4096, 2048, 128, kv_dtype="int8", num_splits=(1, 4)),
    shaped(8, 4, 256, 2304, 1024, 256, kv_dtype="int8"),
    shaped(71, 1, 64, 4544, 1024, 64),
    shaped(32, 8, 128, 4096, 2048, 128, window=4096),
    shaped(32, 8, 128, 4096, 2048, 128, window=4096, kv_dtype="int8"),
    shaped(14, 2, 64, 896, 1024, 64, window=4096),
)
FP8_SHAPES = (
    shaped(14, 2, 64, 896, 1024, 64, kv_dtype="fp8_e4m3"),
    ModelShape(32, 8, 128, 4096, 2048, 128, kv_dtype="fp8_e4m3", num_splits=(1, 4)),
    shaped(32, 8, 128, 4096, 2048, 128, window=4096, kv_dtype="fp8_e4m3"),
    shaped(8, 4, 256, 2304, 1024, 256, kv_dtype="fp8_e4m3"),
)
# In float32; of one split the oldest Triton spills 16 bytes on sm_90, where a newer one does not.
FLOAT32_FP8_SHAPE = shaped(32, 8, 128, 4096, 2048, 128, kv_dtype="fp8_e4m3")
# Scales of int8 are taken in another way.
FLOAT16_SHAPES = (ModelShape(32, 8, 128, 4096, 2048, 128, num_splits=(1, 4)), *SHAPES[4:7])
# The compiler takes seconds for each: products of float32 are long. Their tiles do not depend on the card.
FLOAT32_SHAPES = (SHAPES[0], FLOAT16_SHAPES[0], SHAPES[3], SHAPES[5])
# Sizes change the code of the other kernels only by how many values a program holds: few, or many.
ROW_SHAPES = (SHAPES[0], SHAPES[1])
ROTATED_SHAPES = (*ROW_SHAPES, SHAPES[2])
# Products that 1, 2, 4 and 8 programs share, of well-known models: qkv, o, gate with up, and down.
PRODUCT_SHAPES = (
    ModelShape(32, 8, 128, 4096, 14336, 128),
    ModelShape(14, 2, 64, 896, 4864, 64),
)
KV_OPS = ("write_kv", "decode_attention", "extend_attention")
ROW_OPS = ("rms_norm", "add_rms_norm", "norm_rope", "swiglu")


@dataclass(frozen=True)
class Launch:
    """One kernel to compile."""

    label: str
    function: Any
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: Any

    @property
    def key(self) -> str:
        """On whatever card."""
        shape = (self.options.num_warps, self.options.num_stages)
        return f"{self.function.__name__} {self.signature} {self.constants} {self.attributes} {shape}"

    def compiled(self, arch: int) -> Any:
        source = ASTSource(self.function, self.signature, self.constants, self.attributes)
        return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=self.options.__dict__)

    def usage(self, arch: int) -> Usage:
        """Of the kernel compiled for `arch`."""
        compiled = self.compiled(arch)
        return read_usage(compiled.asm["cubin"], compiled.metadata.shared)

    def usage_from(self, other: int, arch: int) -> Usage:
        """The same where the assembly for `other` is that for `arch` but for its target: assembled anew."""
        compiled, backend = self.compiled(other), make_backend(GPUTarget("cuda", arch, 32))
        options = {**self.options.__dict__, "arch": f"sm{arch}"}
        assembly = retargeted(compiled.asm["ptx"], other, arch)
        cubin = backend.make_cubin(assembly, {}, backend.parse_options(options), arch)
        return read_usage(cubin, compiled.metadata.shared)


def retargeted(assembly: str, other: int, arch: int) -> str:
    """PTX for `other` as one for `arch`."""
    line = f".target sm_{other}\n"
    assert assembly.count(line) == 1, assembly[:300]
    return assembly.replace(line, f".target sm_{arch}\n")


class BlankMaker(CaseMaker):
    """Arguments of any values: a compiler does not look at them, and a large matrix takes seconds to draw."""

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self._dtype)

    def _whole(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)


@contextmanager
def recorded(arch: int, launches: dict[str, Launch]) -> Iterator[list[str]]:
    """Launches are noted in place of being run; the yielded list holds the label of those that follow."""
    backend = make_backend(GPUTarget("cuda", arch, 32))
    labels = [""]

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kwargs["debug"] = False
        binder = create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = binder(*args, **kwargs)
        options, signature, constants, attributes = self._pack_args(
            backend, kwargs, bound, specialization, options
        )
        launch = Launch(labels[0], self, signature, constants, attributes, options)
        launches.setdefault(launch.key, launch)

    original = JITFunction.run
    JITFunction.run = run
    try:
        yield labels
    finally:
        JITFunction.run = original


@cache
def launches_of(arch: int) -> tuple[Launch, ...]:
    """SHAPES in bfloat16; in the others attention, and the rest for one shape: it computes in float32 anyway.

    A kernel is compiled for what changes its code.
    """
    found: dict[str, Launch] = {}
    fp8 = FP8_SHAPES if arch >= FIRST_FP8 else ()
    with recorded(arch, found) as labels:
        table = triton_table()
        for shape in (*SHAPES, *fp8):
            _run(shape, torch.bfloat16, arch, table, labels, _ops_of(shape))
        for shape in (*FLOAT16_SHAPES, *fp8):
            _run(shape, torch.float16, arch, table, labels, KV_OPS)
        for shape in (*FLOAT32_SHAPES, *((FLOAT32_FP8_SHAPE,) if fp8 else ())):
            _run(shape, torch.float32, arch, table, labels, KV_OPS)
        for dtype in (torch.float16, torch.float32):
            _run(ROTATED_SHAPES[0], dtype, arch, table, labels, ROW_OPS)
            _run(ROTATED_SHAPES[1], dtype, arch, table, labels, ("norm_rope",))
        for shape in PRODUCT_SHAPES:
            _run_products(shape, arch, table, labels)
    return tuple(found.values())


def _ops_of(shape: ModelShape) -> tuple[str, ...]:
    if shape in ROW_SHAPES:
        return NAMES
    return (*KV_OPS, "norm_rope") if shape in ROTATED_SHAPES else KV_OPS


def _run(
    shape: ModelShape,
    dtype: torch.dtype,
    arch: int,
    table: OpTable,
    labels: list[str],
    ops: tuple[str, ...],
) -> None:
    maker = BlankMaker(shape, dtype, torch.device("cpu"), arch)
    heads = f"{shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}, KV {shape.kv_dtype}"
    cases = (case for case in maker.cases() if not set(case.ops).isdisjoint(ops))
    _note(cases, f"{heads}, {dtype}", table, labels)


def _run_products(shape: ModelShape, arch: int, table: OpTable, labels: list[str]) -> None:
    """Of few rows all; of many, whose K is not split, one of each kind."""
    maker, kinds = BlankMaker(shape, torch.bfloat16, torch.device("cpu"), arch), set()
    for product in shape.every_product():
        few, many = maker.matmuls(product)
        _note((few,) if product.kind in kinds else (few, many), "bfloat16", table, labels)
        kinds.add(product.kind)


def _note(cases: Iterable[OpCase[OpTable]], what: str, table: OpTable, labels: list[str]) -> None:
    for case in cases:
        labels[0] = f"{'+'.join(case.ops)} {case.label} ({what})"
        case.run(table)
