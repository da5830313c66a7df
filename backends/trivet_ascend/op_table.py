"""Which function computes each operation: torch-npu's, or its twin in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trivet_ascend import npu_ops, npu_twins


@dataclass(frozen=True, slots=True)
class OpTable:
    """One function an operation; names, arguments and shapes as in `npu_ops`."""

    fused_attention: Callable[..., Tensor]
    write_kv: Callable[..., None]
    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rotate: Callable[..., Tensor]
    swiglu: Callable[..., Tensor]
    quantise_rows: Callable[..., tuple[Tensor, Tensor]]
    matmul_w8a8: Callable[..., Tensor]
    matmul_weight_only: Callable[..., Tensor]
    pack_int4: Callable[..., Tensor]


NAMES = tuple(OpTable.__dataclass_fields__)
NPU = OpTable(**{name: getattr(npu_ops, name) for name in NAMES})
TWINS = OpTable(**{name: getattr(npu_twins, name) for name in NAMES})
