"""A started runner over the twins on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.contract import RunnerConfig
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import ModelFiles, open_model
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.op_table import OpTable
from trivet_cuda.runner import CudaRunner

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, KERNELS, CpuDevice


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny_model("mistral", tmp_path_factory.mktemp("models")))


@pytest.fixture
def start(files: ModelFiles) -> Iterator[Callable[..., CudaRunner]]:
    made: list[CudaRunner] = []

    def started(
        device: CpuDevice, config: RunnerConfig = CONFIG, table: OpTable = KERNELS, **options: str
    ) -> CudaRunner:
        assert files.spec is not None
        config = replace(config, options={**config.options, **options})
        plan = CudaBackend().plan(files.spec, files.weights, config, [INFO])
        shape = runner_shape(files.spec, config, plan, [INFO])
        runner = CudaRunner(files.spec, plan, shape, device, table)
        made.append(runner)
        runner.load(files.weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        return runner

    yield started
    for runner in made:
        runner.close()
