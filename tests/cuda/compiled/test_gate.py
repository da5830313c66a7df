"""Every kernel compiled for every architecture: no spills, shared memory that the card has.

What is compiled is what the backend would launch (`launches.py`); this shows that it can be launched, and
nothing about its speed.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from trivet_cuda_gate.cubin import UnreadableCubin, Usage, read_usage
from trivet_cuda_gate.launches import Launch, launches_of, recorded, retargeted
from trivet_cuda_interpreted.backend import InterpretedCuda
from trivet_cuda_interpreted.device import InterpretedDevice

from trivet.contract import RunnerConfig
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet_cuda.backend import runner_shape
from trivet_cuda.kernels.swiglu import swiglu
from trivet_cuda.op_table import triton_table
from trivet_cuda.runner import CudaRunner
from trivet_cuda.tiles import ARCHITECTURES

# Triton makes the same assembly for these as for sm_80, but for the line with the target: NVIDIA's assembler
# alone runs for each, which saves two minutes of the compiler's time. In each run one launch of EVERY is
# looked at.
RELATIVES = {86: 80, 87: 80, 89: 80}
EVERY = 16
TILED = ("decode_kernel", "extend_kernel", "group_matmul_kernel")


def relatives_of(arch: int) -> dict[str, Launch]:
    """Launches on the card whose assembly this one shares, by their keys."""
    return {launch.key: launch for launch in launches_of(RELATIVES[arch])} if arch in RELATIVES else {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["tiles", "rows"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_kernel_fits_the_architecture(arch: int, kind: str) -> None:
    """Products of tiles take the registers; kernels of rows and reductions take few."""
    launches = [each for each in launches_of(arch) if (each.function.__name__ in TILED) == (kind == "tiles")]
    faults, relatives = [], relatives_of(arch)
    assert len(launches) >= {"tiles": 60, "rows": 50}[kind]
    for launch in launches:
        relative = relatives.get(launch.key)
        usage = launch.usage(arch) if relative is None else relative.usage_from(RELATIVES[arch], arch)
        faults += [f"{launch.label}: {fault} ({usage})" for fault in usage.faults(arch)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("arch", RELATIVES)
def test_relatives_are_given_the_same_assembly(arch: int) -> None:
    relatives, launches = relatives_of(arch), launches_of(arch)
    pairs = [(relatives[launch.key], launch) for launch in launches if launch.key in relatives]
    assert len(pairs) > len(launches) / 2
    for relative, launch in pairs[::EVERY]:
        wanted = retargeted(relative.compiled(RELATIVES[arch]).asm["ptx"], RELATIVES[arch], arch)
        assert launch.compiled(arch).asm["ptx"] == wanted, launch.label


def types_of(launch: Launch) -> tuple[str, ...]:
    """The kernel's name and the types of its arguments: another compilation where one differs."""
    return (launch.function.__name__, *(f"{name}: {kind}" for name, kind in launch.signature.items()))


@pytest.mark.parametrize("model", ["mistral", "qwen3"])  # the second norms each head
def test_every_type_that_a_model_launches_is_compiled(
    tmp_path_factory: pytest.TempPathFactory, model: str
) -> None:
    files = open_model(make_tiny_model(model, tmp_path_factory.mktemp("models")))
    assert files.spec is not None
    backend, launched = InterpretedCuda(), dict[str, Launch]()
    devices = backend.probe(1.0)
    for dtype, kv_dtype in product(("bf16", "f16", "f32"), ("auto", "int8", "fp8_e4m3")):
        options = {"graphs": "off", "self_test": "off"}
        config = RunnerConfig(
            dtype=dtype, kv_dtype=kv_dtype, max_model_len=64, num_blocks=20, options=options
        )
        plan = backend.plan(files.spec, files.weights, config, devices)
        shape = runner_shape(files.spec, config, plan, devices)
        runner = CudaRunner(files.spec, plan, shape, InterpretedDevice(), triton_table())
        with recorded(90, launched):
            runner.load(files.weights, lambda done, total: None)
            runner.allocate_kv()
            runner.warm_up()
        runner.close()
    found = {types_of(launch) for launch in launched.values()}
    assert {name.removesuffix("_kernel") for name, *_ in found} > {"rms_norm", "swiglu"}
    compiled = {types_of(launch) for launch in launches_of(90)}
    assert found <= compiled, f"not compiled: {found - compiled}"


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
    source = ASTSource(hoarding_kernel, signature, {(2,): 64})
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
