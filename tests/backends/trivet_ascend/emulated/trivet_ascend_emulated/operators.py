"""Defines torch-npu's operations on the CPU, by the schemas of the real wheel, with its rules asserted.

The schemas stand in `npu_manifest.json`; `tests/run ascend` checks it against the wheels. What an operation
computes is the product's twin, which `test_npu_twins.py` compares with independent mathematics.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.library import Library
from trivet_ascend_emulated import kernels

MANIFEST = Path(__file__).parents[2] / "npu_manifest.json"
KERNELS: Mapping[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score": kernels.fused_infer_attention_score,
    "npu_scatter_pa_kv_cache": kernels.scatter_pa_kv_cache,
    "npu_rms_norm": kernels.rms_norm,
    "npu_add_rms_norm": kernels.add_rms_norm,
    "npu_rotary_mul": kernels.rotary_mul,
    "npu_swiglu": kernels.swiglu,
    "npu_dynamic_quant": kernels.dynamic_quant,
    "npu_quant_matmul": kernels.quant_matmul,
    "npu_weight_quant_batchmatmul": kernels.weight_quant_batchmatmul,
    "npu_convert_weight_to_int4pack": kernels.convert_weight_to_int4pack,
}


def schemas() -> dict[str, str]:
    """Schema of each operation that the product calls."""
    found: dict[str, str] = json.loads(MANIFEST.read_text())["operations"]
    return found


@functools.cache
def define_operators() -> Library:
    """Once a process; a wrong keyword or type in the product then fails at the call."""
    library = Library("npu", "DEF")
    for name, schema in schemas().items():
        library.define(schema)
        library.impl(name, KERNELS[name], "CPU")
    return library
