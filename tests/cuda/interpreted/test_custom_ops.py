"""Each kernel is an operation of torch: schema, fake kernel and aliasing as torch.library checks them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction
from trivet_cuda_interpreted.paged_case import ARCH, PagedCase

from trivet.contract_suite.nothing_waits import NothingWaits
from trivet_cuda.kernels.decode import decode_attention
from trivet_cuda.kernels.extend import extend_attention
from trivet_cuda.kernels.group_matmul import group_matmul
from trivet_cuda.kernels.kv_write import write_kv
from trivet_cuda.kernels.rms_norm import add_rms_norm, rms_norm
from trivet_cuda.kernels.rope import norm_rope
from trivet_cuda.kernels.swiglu import swiglu
from trivet_cuda.op_table import NAMES, triton_table

CHECKS = ("test_schema", "test_faketensor")


def arguments() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    paged = PagedCase(torch.float32, torch.int8, queries=(3, 1), prefixes=(5, 20), head_dim=16, num_heads=4)
    plain = PagedCase(torch.float32, queries=(3, 1), prefixes=(5, 20), head_dim=16, num_heads=4)
    query = paged.random(4, 4, 16)
    starts, lengths = torch.tensor([0, 3, 4]).int(), torch.tensor(paged.lengths).int()
    x, weight = paged.random(4, 32), paged.random(32)
    angles = paged.random(4, 8)
    scales = torch.ones(1, 8).half()
    words = torch.ones(4, 8, dtype=torch.int32)
    return {
        "write_kv": (write_kv, (*plain.new, *plain.caches, None, None, plain.slots)),
        "write_kv in int8": (write_kv, (*paged.new, *paged.caches, *paged.scales, paged.slots)),
        "decode": (
            decode_attention,
            (query[:2], *paged.caches, *paged.scales, paged.table, lengths, 0.25, 0, 0.0, 2, ARCH),
        ),
        "extend": (
            extend_attention,
            (
                query,
                *plain.caches,
                None,
                None,
                plain.table,
                starts,
                lengths,
                plain.tiles(),
                0.25,
                0,
                0.0,
                ARCH,
            ),
        ),
        "rms_norm": (rms_norm, (x, weight, 1e-5, torch.bfloat16)),
        "add_rms_norm": (add_rms_norm, (x, x.clone(), weight, 1e-5, torch.float32)),
        "norm_rope": (norm_rope, (query, 3, None, None, 1e-5, angles.cos(), angles.sin(), False)),
        "swiglu": (swiglu, (x,)),
        "group_matmul": (group_matmul, (x, words, scales, scales, ARCH)),
    }


CASES = arguments()


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_what_it_says_it_is(name: str) -> None:
    operation, given = CASES[name]
    torch.library.opcheck(operation, given, test_utils=CHECKS)


def test_every_operation_of_the_table_is_here() -> None:
    table = triton_table()
    assert {getattr(table, name) for name in NAMES} == {operation for operation, _ in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_the_host_waits_for_nothing_inside_an_operation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end a capture, and the overlap of two steps. But for launches: interpreted, they copy."""
    launched: list[object] = []
    monkeypatch.setattr(InterpretedFunction, "run", lambda self, *args, **kwargs: launched.append(self))
    operation, given = CASES[name]
    with NothingWaits():
        operation._init_fn(*given)  # the function itself: of an operation the mode sees the call alone
    assert launched


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_shapes_are_known_without_running(num_tokens: int) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(num_tokens, 64, device="cuda", dtype=torch.bfloat16)
        assert swiglu(x).shape == (num_tokens, 32)
        assert rms_norm(x, torch.empty(64, device="cuda"), 1e-5, torch.float16).dtype == torch.float16
