"""Which function computes each operation: a Triton kernel, or its twin in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from trivet.errors import BackendError
from trivet_cuda import twins


@dataclass(frozen=True, slots=True)
class OpTable:
    """One function an operation; arguments and shapes as in `twins`."""

    write_kv: Callable[..., None]
    decode_attention: Callable[..., Tensor]
    extend_attention: Callable[..., Tensor]
    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    norm_rope: Callable[..., Tensor]
    swiglu: Callable[..., Tensor]
    group_matmul: Callable[..., Tensor]


NAMES = tuple(OpTable.__dataclass_fields__)
TWINS = OpTable(**{name: getattr(twins, name) for name in NAMES})
# In float64; what is stored in KV has no other form than the stored one.
EXACT = replace(
    TWINS, **{name: partial(getattr(twins, name), exact=True) for name in NAMES if name != "write_kv"}
)


def triton_table() -> OpTable:
    """The kernels, compiled when they are first launched. Raises: BackendError where Triton is missing."""
    try:
        from trivet_cuda.kernels import decode, extend, group_matmul, kv_write, rms_norm, rope, swiglu
    except ImportError as error:
        raise BackendError(
            f"Triton cannot be imported: {error}; install it into this environment with "
            "pip install 'trivet[cuda]'"
        ) from error
    return OpTable(
        write_kv=kv_write.write_kv,
        decode_attention=decode.decode_attention,
        extend_attention=extend.extend_attention,
        rms_norm=rms_norm.rms_norm,
        add_rms_norm=rms_norm.add_rms_norm,
        norm_rope=rope.norm_rope,
        swiglu=swiglu.swiglu,
        group_matmul=group_matmul.group_matmul,
    )


def attention_table(attention: str, device: torch.device) -> OpTable:
    """The kernels, with attention by "triton" or "flashinfer". Raises: BackendError where one is missing."""
    table = triton_table()
    if attention == "triton":
        return table
    from trivet_cuda.flashinfer_attention import load_flashinfer, with_flashinfer

    return with_flashinfer(table, device, load_flashinfer())
