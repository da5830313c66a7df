"""Every kernel compiled for every architecture: no spills, shared memory that the card has.

What is compiled is what the backend would launch (`launches.py`); this shows that it can be launched, and
nothing about its speed.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from trivet_cuda_gate.cubin import UnreadableCubin, Usage, read_usage
from trivet_cuda_gate.launches import launches_of, recorded

from trivet_cuda.kernels.swiglu import swiglu
from trivet_cuda.tiles import ARCHITECTURES

# By architecture: the most that a kernel may keep on the stack, with the reason. Empty is the goal.
WAIVED_STACK_BYTES: dict[tuple[int, str], int] = {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_fits_the_architecture(arch: int) -> None:
    faults, launches = [], launches_of(arch)
    assert len(launches) >= 30
    for launch in launches:
        compiled = launch.compiled(arch)
        usage = read_usage(compiled.asm["cubin"], compiled.metadata.shared)
        waived = WAIVED_STACK_BYTES.get((arch, launch.function.__name__), 0)
        if usage.stack_bytes > waived or not waived:
            faults += [f"{launch.label}: {fault} ({usage})" for fault in usage.faults(arch)]
    assert not faults, "\n".join(faults)


@triton.jit
def hoarding_kernel(x, out, N: tl.constexpr):  # noqa: N803
    """Holds more values than there are registers."""
    at = tl.arange(0, N)
    a = tl.load(x + at[:, None] * N + at[None, :])
    b = tl.dot(a, a)
    c = tl.dot(b.to(tl.float16), a)
    tl.store(out + at[:, None] * N + at[None, :], a + b + c + tl.trans(b))


def test_a_kernel_that_spills_is_found() -> None:
    signature = {"x": "*fp16", "out": "*fp32", "N": "constexpr"}
    source = ASTSource(hoarding_kernel, signature, {(2,): 128})
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 1})
    usage = read_usage(compiled.asm["cubin"], compiled.metadata.shared)
    assert any("spills" in fault for fault in usage.faults(80)), usage


def test_what_is_no_cubin_is_an_error_and_no_kernel_without_spills() -> None:
    with pytest.raises(UnreadableCubin):
        read_usage(b"not a cubin", 0)


def test_too_much_shared_memory_is_found() -> None:
    usage = Usage(64, 0, 0, shared_bytes=120_000)
    assert usage.faults(86)
    assert not usage.faults(90)


def test_a_new_number_of_rows_compiles_no_new_kernel() -> None:
    """In the middle of serving nothing may wait for the compiler."""
    found: dict[str, object] = {}
    with recorded(90, found):  # type: ignore[arg-type]  # kept by its key only
        for num_rows in (1, 2, 7, 16, 48, 2048):
            swiglu(torch.zeros(num_rows, 512, dtype=torch.bfloat16))
    assert len(found) == 1
