"""The runner over its twins on the CPU: what it tells of a start that went worse than planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.contract import Batch, DeviceInfo, PoolKind, RunnerConfig, Sampling
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.recorded_graph import RecordedGraph
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import BackendError, DoesNotFit, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.spec import Norm
from trivet.models.torch_ops import DTYPES
from trivet.runners.rank_order import RankOrder
from trivet.runners.sharded_weights import Vector
from trivet.runners.slices import Rank
from trivet.runners.warm_up import warm_up_sampling, warm_up_step
from trivet_cuda import device as device_module
from trivet_cuda import device_sampler, ranks, twins
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.device import Captured, Mark
from trivet_cuda.op_cases import CaseMaker
from trivet_cuda.op_table import NAMES, TWINS, OpTable
from trivet_cuda.runner import CudaRunner
from trivet_cuda.self_test import model_shapes

CONFIG = RunnerConfig(
    dtype="f32", max_model_len=64, max_num_seqs=2, num_blocks=20, options={"self_test": "off"}
)
INFO = DeviceInfo("cuda", 0, "GPU-1", "test", "sm_90", 1 << 36, 1 << 36, frozenset({"f32", "bf16", "f16"}))


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
        self._peak, self._refuses, self.free = peak, refuses, 1 << 36

    def free_bytes(self) -> int:
        return self.free

    def reset_peak(self) -> None:
        """Told by the test."""

    def peak_bytes(self) -> int:
        return self._peak

    def mark(self) -> Mark:
        return PassedMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        if self._refuses:
            raise RuntimeError(self._refuses)
        graph, output = RecordedGraph.of(run)
        return Captured(output, graph.replay)

    def synchronise(self) -> None:
        """Nothing is queued."""

    def release(self) -> None:
        """Nothing is cached."""


# As a kernel: what runs in place of one is not captured.
KERNELS = replace(TWINS, decode_attention=lambda *args: twins.decode_attention(*args))


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


def test_nothing_is_told_where_all_is_well(start: Callable[..., CudaRunner]) -> None:
    assert start(CpuDevice()).notices() == ()


def test_graphs_that_cannot_be_captured_are_told(start: Callable[..., CudaRunner]) -> None:
    (notice,) = start(CpuDevice(refuses="operation not permitted when stream is capturing")).notices()
    assert notice.startswith("no graph of 2 sequences could be captured: operation not permitted")
    assert notice.endswith("steps run eagerly, slower")
    assert start(CpuDevice(refuses="never asked"), graphs="off").notices() == ()


def test_graphs_without_memory_are_told_with_what_goes_without_them(start: Callable[..., CudaRunner]) -> None:
    with pytest.raises(DoesNotFit, match=r"captured decodes .* options\.graphs to off"):
        start(CpuDevice(refuses="CUDA error: out of memory"))


def test_a_step_that_takes_more_than_planned_is_refused(start: Callable[..., CudaRunner]) -> None:
    """With both numbers; a pass and its draw follow each other, so each may take what both have."""
    runner = start(CpuDevice())
    planned = {part.name: part.size_bytes for part in runner._plan.parts}
    for_a_step = planned["activations"] + planned["logits"]
    assert start(CpuDevice(peak=for_a_step)).notices() == ()
    with pytest.raises(DoesNotFit, match="lower max_num_batched_tokens") as found:
        start(CpuDevice(peak=2 * for_a_step))
    for size in (2 * for_a_step, for_a_step):
        assert f"{size / (1 << 30):.3f} GiB" in str(found.value)


def test_what_graphs_leave_has_to_hold_a_step(start: Callable[..., CudaRunner]) -> None:
    device = CpuDevice(peak=1 << 20)

    def capture(run: Callable[[], Tensor]) -> Captured:
        device.free = 1 << 19
        return CpuDevice.capture(device, run)

    device.capture = capture  # type: ignore[method-assign]
    with pytest.raises(DoesNotFit, match=r"options\.graphs to off"):
        start(device, graphs="on")


def test_more_tokens_than_one_sequence_has_are_measured(
    start: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[int]] = []
    lengths: list[list[int]] = []
    run = CudaRunner._run

    def noted(runner: CudaRunner, batch: Batch) -> Tensor:
        steps.append(np.diff(batch.query_start_loc).tolist())
        lengths.append(batch.seq_lens.tolist())
        return run(runner, batch)

    monkeypatch.setattr(CudaRunner, "_run", noted)
    runner = start(CpuDevice())
    most = runner._plan.max_num_batched_tokens
    assert most > runner._plan.max_model_len == 64
    assert steps[0] == [64, 64]  # both sequences whole
    assert (steps[1:3], lengths[1:3]) == ([[64], [1]], [[64], [64]])  # then the longest context


def test_a_draw_is_measured_as_it_is_and_with_edits_and_masks(
    start: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[bool, bool]] = []
    draw = device_sampler.draw

    def noted(pieces: Iterator[Tensor], sampling: Sampling, device: torch.device) -> device_sampler.Drawn:
        drawn.append((sampling.edit_ids is not None, sampling.mask_bits is not None))
        return draw(pieces, sampling, device)

    monkeypatch.setattr(device_sampler, "draw", noted)
    start(CpuDevice())
    assert drawn == [(False, False), (True, True)]


def test_what_is_pooled_is_not_waited_for(
    start: Callable[..., CudaRunner], files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = start(CpuDevice())
    assert files.spec is not None
    step = replace(warm_up_step((5,), 16), pooling=np.array([PoolKind.SUM], np.int8))
    monkeypatch.setattr(Tensor, "cpu", lambda *_: pytest.fail("the host waits for the device"))
    runner.forward(step)
    runner.sample(0, warm_up_sampling(1, files.spec.num_tokens))
    monkeypatch.undo()
    pooled = runner.collect(0).pooled
    assert pooled is not None
    assert pooled.shape == (1, files.spec.hidden_size)
    assert np.abs(pooled).max() > 0


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


LARGER = replace(CONFIG, max_num_seqs=8, max_model_len=128, num_blocks=80)


@pytest.mark.parametrize("table", [KERNELS, TWINS], ids=["captured", "the twin"])
def test_a_few_sequences_after_many_give_the_eager_tokens(
    start: Callable[..., CudaRunner], files: ModelFiles, table: OpTable
) -> None:
    """What the buckets of many sequences have left in memory is read as no block by that of few."""
    assert files.spec is not None
    tokens = []
    for graphs in ("on", "off"):
        runner, found = start(CpuDevice(), LARGER, table, graphs=graphs), []
        for lengths in ((20, 7, 30, 40, 50, 60, 70, 80), (20, 7, 9)):
            driver = Driver(runner, runner._plan, vocab_size=files.spec.num_tokens, max_num_seqs=8)
            found += driver.generate([driver.add(random_prompt(n, n)) for n in lengths], 4)
        tokens.append(found)
    assert tokens[0] == tokens[1]


def test_the_twin_of_decode_is_not_captured_and_that_is_told(start: Callable[..., CudaRunner]) -> None:
    runner = start(CpuDevice(refuses="never asked"), table=TWINS, graphs="on")
    assert any(each.startswith("no graphs are captured, since decode_attention") for each in runner.notices())


def test_the_residual_stream_is_float32_in_every_type(start: Callable[..., CudaRunner]) -> None:
    """As in the reference: 160 additions in bfloat16 move it by 1 %, and float16 ends at 65,504."""
    for dtype in ("bf16", "f16"):
        ops = start(CpuDevice(), replace(CONFIG, dtype=dtype)).ops
        stream, added = torch.full((2, 64), 6e4), torch.full((2, 64), 8e3).to(ops.dtype)
        normed, total = ops.norm(stream, Vector(torch.ones(64), None), Norm(), added)
        assert total.dtype == torch.float32
        assert total.tolist() == [[68000.0] * 64] * 2
        assert normed.dtype == ops.dtype
        assert normed.float().tolist() == [[1.0] * 64] * 2


def test_a_table_of_newest_tokens_that_is_replaced_after_the_capture_is_found(
    start: Callable[..., CudaRunner], files: ModelFiles
) -> None:
    """Tokens that the host has not seen come from it; the graph has the memory of the first."""
    assert files.spec is not None
    tokens = []
    for is_replaced in (False, True):
        runner = start(CpuDevice(), graphs="on")
        if is_replaced:
            runner._newest = runner._newest.clone()
        driver = Driver(runner, runner._plan, vocab_size=files.spec.num_tokens, max_num_seqs=2)
        tokens.append(driver.generate([driver.add(random_prompt(20, 3))], 6))
    assert tokens[0] != tokens[1]


def test_ranks_over_mig_instances_are_refused(files: ModelFiles) -> None:
    assert files.spec is not None
    devices = [replace(INFO, uid=f"MIG-{i}") for i in range(2)]
    config = replace(CONFIG, tensor_parallel=2)
    with pytest.raises(Unsupported, match="MIG instances"):
        CudaBackend().plan(files.spec, files.weights, config, devices)


def test_the_gpu_that_was_planned_for_is_opened(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(uid: str, environment: Mapping[str, str]) -> None:
        raise BackendError(f"asked for {uid}")

    monkeypatch.setattr(device_module, "open_by_uid", refuse)
    monkeypatch.setattr(ranks, "open_by_uid", refuse)
    assert files.spec is not None
    plan = CudaBackend().plan(files.spec, files.weights, CONFIG, [INFO])
    with pytest.raises(BackendError, match="asked for GPU-1"):
        CudaBackend().create_runner(files.spec, CONFIG, plan, [INFO])
    devices = (INFO, replace(INFO, uid="GPU-2"))
    with pytest.raises(BackendError, match="asked for GPU-2"):
        ranks.open_gpu(RankOrder("", Rank(1, 2), "", files.spec, CONFIG, plan, devices))


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
    tested: set[Call] = set()
    for sizes in model_shapes(files.spec, shape, num_sms=2):
        maker = CaseMaker(sizes, DTYPES[dtype], torch.device("cpu"), CpuDevice.arch)
        for case in maker.cases():
            case.run(noting(tested))
    assert {name for name, *_ in calls} == set(NAMES) - {"group_matmul"}
    assert calls <= tested, f"not tested: {calls - tested}"
