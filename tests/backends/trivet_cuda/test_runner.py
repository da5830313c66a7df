"""The runner over its twins on the CPU: what it tells of a start that went worse than planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trivet.contract import DeviceInfo, RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.device import Captured, Mark
from trivet_cuda.op_table import TWINS
from trivet_cuda.runner import CudaRunner

CONFIG = RunnerConfig(
    dtype="f32", max_model_len=64, max_num_seqs=2, num_blocks=20, options={"self_test": "off"}
)
INFO = DeviceInfo("cuda", 0, "GPU-1", "test", "sm_90", 1 << 36, 1 << 36, frozenset({"f32", "bf16"}))


class PassedMark:
    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def is_passed(self) -> bool:
        return True

    def wait(self) -> None:
        """The CPU is never behind."""

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, PassedMark)
        return self.at_s - earlier.at_s


class CpuDevice:
    """See `trivet_cuda.device.Device`."""

    torch_device = torch.device("cpu")
    arch, num_sms = 90, 2

    def __init__(self, peak: int = 0, refuses: str = "") -> None:
        self._peak, self._refuses = peak, refuses

    def free_bytes(self) -> int:
        return 1 << 36

    def reset_peak(self) -> None:
        """Told by the test."""

    def peak_bytes(self) -> int:
        return self._peak

    def mark(self) -> Mark:
        return PassedMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        if self._refuses:
            raise RuntimeError(self._refuses)
        output = run()

        def replay() -> None:
            with torch.inference_mode():
                output.copy_(run())

        return Captured(output, replay)

    def synchronise(self) -> None:
        """Nothing is queued."""

    def release(self) -> None:
        """Nothing is cached."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny_model("mistral", tmp_path_factory.mktemp("models")))


@pytest.fixture
def start(files: ModelFiles) -> Iterator[Callable[..., CudaRunner]]:
    made: list[CudaRunner] = []

    def started(device: CpuDevice, **options: str) -> CudaRunner:
        assert files.spec is not None
        config = replace(CONFIG, options={**CONFIG.options, **options})
        plan = CudaBackend().plan(files.spec, files.weights, config, [INFO])
        shape = runner_shape(files.spec, config, plan, [INFO])
        runner = CudaRunner(files.spec, plan, shape, device, TWINS)
        made.append(runner)
        runner.load(files.weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        return runner

    yield started
    for runner in made:
        runner.close()


def test_nothing_is_told_where_all_is_well(start: Callable[..., CudaRunner]) -> None:
    assert start(CpuDevice()).notices() == ()


def test_graphs_that_cannot_be_captured_are_told(start: Callable[..., CudaRunner]) -> None:
    (notice,) = start(CpuDevice(refuses="operation not permitted when stream is capturing")).notices()
    assert notice.startswith("no graph of 2 sequences could be captured: operation not permitted")
    assert notice.endswith("steps run eagerly, slower")
    assert start(CpuDevice(refuses="never asked"), graphs="off").notices() == ()


def test_a_step_that_takes_more_than_planned_is_told_and_counted(start: Callable[..., CudaRunner]) -> None:
    runner = start(CpuDevice(peak=1 << 40))
    assert [notice.split(" for ")[1].split(" ")[0] for notice in runner.notices()] == [
        "activations",
        "logits",
    ]
    held = {part.name: part.size_bytes for part in runner.memory()}
    assert held["activations"] == held["logits"] == 1 << 40


def test_a_captured_decode_gives_the_eager_tokens(
    start: Callable[..., CudaRunner], files: ModelFiles
) -> None:
    assert files.spec is not None
    tokens = []
    for graphs in ("on", "off"):
        runner = start(CpuDevice(), graphs=graphs)
        driver = Driver(runner, runner._plan, vocab_size=files.spec.num_tokens, max_num_seqs=2)
        tokens.append(driver.generate([driver.add(random_prompt(n, n)) for n in (20, 7)], 6))
    assert tokens[0] == tokens[1]


def test_ranks_over_mig_instances_are_refused(files: ModelFiles) -> None:
    assert files.spec is not None
    devices = [replace(INFO, uid=f"MIG-{i}") for i in range(2)]
    config = replace(CONFIG, tensor_parallel=2)
    with pytest.raises(Unsupported, match="MIG instances"):
        CudaBackend().plan(files.spec, files.weights, config, devices)
