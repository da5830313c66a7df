"""Calls every operation of the product by the schemas and shape functions inside a torch-npu wheel.

    python wheel_check.py WHEEL

Nothing of the wheel is installed or linked: its YAML defines the operations on plain torch, and its Python
gives their results' shapes and dtypes on the device "meta". Prints JSON: the schemas of our operations, the
cases whose results differ from the twins', and the operations without a shape function.
"""

from __future__ import annotations

import json
import sys
import types
import zipfile
from dataclasses import replace
from typing import Any

import torch
import yaml
from torch.library import Library
from trivet_ascend_emulated.operators import schemas

from trivet_ascend.op_cases import CaseMaker
from trivet_ascend.op_table import NPU, TWINS
from trivet_ascend.self_test import FULL_SHAPES

SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
SHAPE_FUNCTIONS = "torch_npu/op_plugin/meta/_meta_registrations.py"
ERROR_CODES = (
    "PARAM TYPE VALUE PTR INTERNAL MEMORY NOT_SUPPORT NOT_FOUND UNAVAIL SYSCALL TIMEOUT PERMISSION ACL"
)
DTYPES = "float4_e2m1fn_x2 float4_e1m2fn_x2 hifloat8 float8_e8m0fnu int4"
META = torch.device("meta")


def main(path: str) -> None:
    """Print the findings about one wheel."""
    wheel = zipfile.ZipFile(path)
    found = _define(yaml.safe_load(wheel.read(SCHEMAS))["custom"])
    _make_modules()
    _run_shape_functions(wheel.read(SHAPE_FUNCTIONS).decode())
    wrong: list[object] = []
    without: set[str] = set()
    for dtype in (torch.bfloat16, torch.float16):
        for shape in FULL_SHAPES:
            maker = CaseMaker(shape, dtype, META)
            cases = [*maker.cases(), *maker.quantised_cases("w8a8"), *maker.quantised_cases("w4a16")]
            for case in cases:
                table = NPU
                if "pack_int4" in case.ops and not has_shape_function("npu_convert_weight_to_int4pack"):
                    without.add("pack_int4")
                    table = replace(NPU, pack_int4=TWINS.pack_int4)
                given = [_form(result) for result in case.run(table)]
                wanted = [_form(result) for result in case.run(TWINS)]
                if given != wanted:
                    wrong.append([case.ops, case.label, given, wanted])
    print(json.dumps({"schemas": found, "wrong": wrong, "without_shape_function": sorted(without)}))


def _define(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Define all operations of the wheel; the schemas of ours."""
    library = Library("npu", "DEF")
    ours: dict[str, str] = {}
    defined: set[str] = set()
    for entry in entries:
        name = entry["func"].split("(")[0]
        if name in defined:
            continue
        defined.add(name)
        if name in schemas():
            ours[name] = entry["func"]
            library.define(entry["func"])
        else:
            try:
                library.define(entry["func"])
            except RuntimeError:  # a type that plain torch does not know
                continue
    _KEPT.append(library)
    return ours


_KEPT: list[Library] = []  # a library that is collected takes its operations with it


def _make_modules() -> None:
    """The few names that the shape functions import from torch_npu."""

    def module(name: str, **members: object) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(members)
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        return made

    module("torch_npu", **{name: 290 + place for place, name in enumerate(DTYPES.split())})
    module("torch_npu.utils")
    codes = type("ErrCode", (), {name: name for name in ERROR_CODES.split()})
    module("torch_npu.utils._error_code", ErrCode=codes, ops_error=str, pta_error=str)
    module("torch_npu.npu")
    module("torch_npu.npu.utils", get_cann_version=lambda *_: "", _is_gte_cann_version=lambda *_: True)
    module("torch_npu.npu._backends", get_soc_version=lambda: 220)


def _run_shape_functions(source: str) -> None:
    """Registrations for operations that are not in the YAML are passed over."""
    register = torch.library.impl

    def tolerant(library: Library, name: str, *rest: Any) -> Any:
        decorate = register(library, name, *rest)

        def decorator(function: Any) -> Any:
            try:
                return decorate(function)
            except RuntimeError:
                return function

        return decorator

    torch.library.impl = tolerant  # type: ignore[assignment]
    exec(compile(source, SHAPE_FUNCTIONS, "exec"), {"__name__": "shape_functions"})
    torch.library.impl = register


def has_shape_function(name: str) -> bool:
    """Whether the wheel says what the operation `name` returns."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "Meta"))


def _form(result: torch.Tensor) -> tuple[list[int], str]:
    return list(result.shape), str(result.dtype)


if __name__ == "__main__":
    main(sys.argv[1])
