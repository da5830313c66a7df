"""Makes Triton's interpreter compute bfloat16 and float8 rightly, or refuse.

As it comes (3.6 to 3.9) it keeps bfloat16 as 16-bit whole numbers: products, sums and conversions from whole
numbers act on the bits, conversions to it cut instead of rounding, and those to float8 lose the carry, all
without a word (triton #11584, #8322). Here conversions and products go through float32 and torch's own
rounding, and any other arithmetic on bfloat16 is refused: kernels do it in float32. It also keeps NaN where a
card's clamp does not.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter

Array = NDArray[Any]
TORCH_TYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
}
LARGEST_TO_FLOAT8 = 464.0  # that is rounded to 448
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
AS_BITS = {tl.bfloat16, tl.float8e4nv}  # what the interpreter holds as whole numbers


def install() -> None:
    """For the rest of the process; before the first launch. Idempotent."""
    builder: Any = interpreter.InterpreterBuilder
    if builder.create_dot is create_dot:
        return
    builder.create_dot = create_dot
    builder.create_clampf = _clamp(builder.create_clampf)
    builder.cast_impl = _cast(builder.cast_impl)
    builder.create_fp_to_fp = _round(builder.create_fp_to_fp)
    for name in ("binary_op", "unary_op", "create_fma", "create_rsqrt"):
        setattr(builder, name, _without_bfloat16(getattr(builder, name)))
    for reduction in ("min_max", "sum"):
        kind: Any = interpreter.ReduceOps
        setattr(kind, reduction, _without_bfloat16(getattr(kind, reduction)))
    interpreter._patch_lang_tensor = _with_index(interpreter._patch_lang_tensor)
    interpreter._patch_lang = _once(interpreter._patch_lang)
    call = interpreter.GridExecutor.__call__

    def quietly(self: Any, *args: Any, **kwargs: Any) -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a device does not warn
            warnings.simplefilter("ignore", RuntimeWarning)
            call(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = quietly


def _with_index(patch: Any) -> Any:
    """Bounds of loops: 3.6 has them as arrays of one element, which NumPy from 2.4 on takes for no number."""

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch_tensor


class _Kept:
    """A patch of the language that stays."""

    def restore(self) -> None:
        """Kernels of this process are only ever interpreted."""


def _once(patch: Any) -> Any:
    """The language is patched once for each function, not at each of its calls: a third of the time."""
    patched: set[int] = set()

    def patch_once(function: Any) -> Any:
        if id(function) not in patched:
            patched.add(id(function))
            patch(function)
        return _Kept()

    return patch_once


def scalar(handle: Any) -> Any:
    """The element type of a value."""
    return getattr(handle.dtype, "scalar", handle.dtype)


def float32_of(data: Array, kind: Any) -> Array:
    """Values of a type that is held as bits."""
    bits = torch.from_numpy(np.ascontiguousarray(data)).view(BITS[data.dtype.itemsize])
    return bits.view(TORCH_TYPES[kind]).float().numpy().reshape(data.shape)


def bits_of(values: Array, kind: Any) -> Array:
    """Float32 values rounded to `kind`, half to even, as the interpreter holds them.

    What is beyond float8's range becomes NaN: cards saturate, unless they are told not to, and a kernel shall
    not need it.
    """
    exact = torch.from_numpy(np.array(values, np.float32))
    if kind == tl.float8e4nv:
        exact = torch.where(exact.abs() > LARGEST_TO_FLOAT8, torch.nan, exact)
    rounded = exact.to(TORCH_TYPES[kind])
    held = interpreter._get_np_dtype(kind)
    return rounded.view(BITS[held.itemsize]).numpy().view(held).reshape(np.shape(values))


def _values(handle: Any) -> Array:
    return float32_of(handle.data, scalar(handle)) if scalar(handle) in AS_BITS else handle.data


def create_dot(
    self: Any, a: Any, b: Any, d: Any, input_precision: object, max_num_imprecise_acc: object
) -> Any:
    """Products in the accumulator's type, as tensor cores add them."""
    product = np.matmul(_values(a), _values(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, scalar(d))


def _clamp(original: Any) -> Any:
    """Of NaN a card makes the lower bound, unless it is told to keep it; NumPy always keeps it."""

    def create_clampf(self: Any, x: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
        clamped = original(self, x, low, high, propagate_nan)
        if propagate_nan == tl.PropagateNan.NONE:
            clamped.data = np.where(np.isnan(x.data), low.data, clamped.data)
        return clamped

    return create_clampf


def _cast(original: Any) -> Any:
    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        kind, wanted = scalar(source), target.scalar
        if kind == wanted or not {kind, wanted} & AS_BITS:
            return original(self, source, target)
        if wanted in AS_BITS:
            return interpreter.TensorHandle(bits_of(_values(source).astype(np.float32), wanted), wanted)
        return interpreter.TensorHandle(_values(source).astype(interpreter._get_np_dtype(target)), wanted)

    return cast_impl


def _round(original: Any) -> Any:
    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        kind, wanted = scalar(source), target.scalar
        if kind not in TORCH_TYPES or wanted not in TORCH_TYPES:
            return original(self, source, target, rounding)
        if wanted in AS_BITS:
            return interpreter.TensorHandle(bits_of(_values(source), wanted), wanted)
        return interpreter.TensorHandle(_values(source).astype(interpreter._get_np_dtype(target)), wanted)

    return create_fp_to_fp


def _without_bfloat16(original: Any) -> Any:
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if getattr(getattr(arg, "dtype", None), "scalar", None) in AS_BITS:
                raise TypeError(
                    "arithmetic on bfloat16 or float8 is not emulated: a kernel does it in float32"
                )
        return original(self, *args, **kwargs)

    return checked
