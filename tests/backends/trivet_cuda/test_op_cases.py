"""What a model launches is what the self-test at start compares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm
from trivet.models.torch_ops import DTYPES
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.memory_plan import Shape
from trivet_cuda.op_cases import CaseMaker
from trivet_cuda.op_table import NAMES, TWINS, OpTable
from trivet_cuda.random_model import RandomRunner, Runs
from trivet_cuda.runner import CudaRunner
from trivet_cuda.self_test import model_shapes

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, CpuDevice

Call = tuple[object, ...]  # the operation's name, and of each argument its type and whether rows have gaps


def call_of(name: str, args: tuple[Any, ...]) -> Call:
    """A number is no type of its own: kernels are not compiled for it."""
    kinds = [
        (each.dtype, each.dim() > 1 and each.stride(0) != each[0].numel())
        if isinstance(each, Tensor)
        else each
        for each in args
        if each is None or isinstance(each, (Tensor, torch.dtype, bool))
    ]
    return (name, *kinds)


def noting(calls: set[Call]) -> OpTable:
    """The twins, whose calls are kept in `calls`."""

    def noted(name: str, twin: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            calls.add(call_of(name, args))
            return twin(*args)

        return called

    return replace(TWINS, **{name: noted(name, getattr(TWINS, name)) for name in NAMES})


@pytest.mark.parametrize("model", ["mistral", "qwen3"])  # the second norms each head
@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_call_of_the_product_is_one_of_the_self_test(
    tmp_path_factory: pytest.TempPathFactory, model: str, dtype: str, kv_dtype: str
) -> None:
    """With the types that a model gives it: Triton compiles another kernel for others."""
    files = open_model(make_tiny_model(model, tmp_path_factory.mktemp("models")))
    assert files.spec is not None
    options = {**CONFIG.options, "graphs": "off"}
    config = replace(CONFIG, dtype=dtype, kv_dtype=kv_dtype, options=options)
    plan = CudaBackend().plan(files.spec, files.weights, config, [INFO])
    shape = runner_shape(files.spec, config, plan, [INFO])
    calls: set[Call] = set()
    runner = CudaRunner(files.spec, plan, shape, CpuDevice(), noting(calls))
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    runner.warm_up()
    runner.close()
    assert {name for name, *_ in calls} == set(NAMES) - {"group_matmul"}
    expect_tested(calls, files.spec, shape)


def expect_tested(calls: set[Call], spec: ModelSpec, shape: Shape) -> None:
    tested: set[Call] = set()
    for sizes in model_shapes(spec, shape, num_sms=2):
        maker = CaseMaker(sizes, DTYPES[shape.dtype], torch.device("cpu"), CpuDevice.arch)
        for case in maker.cases():
            case.run(noting(tested))
    assert calls <= tested, f"not tested: {calls - tested}"


def test_what_a_model_norms_alone_is_one_of_the_self_test() -> None:
    """Outputs of attention and MLP, and heads that are not turned: of the model's type, unlike the stream."""
    attention = Attention(4, 2, 16, 0.25, None, qk_norm=Norm())
    layers = (Layer(attention, MLP(96), order="sandwich"),)
    runs = Runs(ModelSpec("test", 96, 96, 64, 256, layers, (0,), Norm()), num_seqs=(2,), num_tokens=20)
    calls: set[Call] = set()
    runner = RandomRunner(runs.spec, runs.plan, runs.shape, CpuDevice(), noting(calls))
    runner.load_random()
    runner.allocate_kv()
    runner.warm_up()
    runner.close()
    assert sum(name == "rms_norm" and kinds[0] == (torch.bfloat16, False) for name, *kinds in calls) == 1
    expect_tested({call for call in calls if call[0] == "rms_norm"}, runs.spec, runs.shape)
