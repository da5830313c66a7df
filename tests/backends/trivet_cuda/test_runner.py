"""The runner over its twins on the CPU: what it tells of a start that went worse than planned."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.contract import Batch, PoolKind, Sampling
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.prompts import random_prompt
from trivet.errors import BackendError, DeviceLost, DoesNotFit, OutOfMemory, Unsupported
from trivet.models.model_files import ModelFiles
from trivet.models.ops import StepAdapters
from trivet.models.spec import Norm
from trivet.runners.rank_order import RankOrder
from trivet.runners.sharded_weights import Vector
from trivet.runners.slices import Rank
from trivet.runners.warm_up import warm_up_sampling, warm_up_step
from trivet_cuda import device as device_module
from trivet_cuda import device_sampler, failures, ranks
from trivet_cuda.backend import CudaBackend
from trivet_cuda.device import Mark
from trivet_cuda.op_table import TWINS
from trivet_cuda.runner import CudaRunner
from trivet_cuda.step_view import StepView

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, CpuDevice


def test_nothing_is_told_where_all_is_well(start: Callable[..., CudaRunner]) -> None:
    assert start(CpuDevice()).notices() == ()


def test_graphs_that_cannot_be_captured_are_told(start: Callable[..., CudaRunner]) -> None:
    (notice,) = start(CpuDevice(refuses="operation not permitted when stream is capturing")).notices()
    assert notice.startswith("no graph of 2 sequences could be captured: operation not permitted")
    assert notice.endswith("steps run eagerly, slower")
    assert start(CpuDevice(refuses="never asked"), graphs="off").notices() == ()


def test_every_bucket_is_run_where_a_kernel_depends_on_it(
    start: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin does not: with a long context it would walk empty tables for minutes."""
    sizes: list[tuple[int, ...]] = []
    forward = CudaRunner._forward

    def noted(runner: CudaRunner, view: StepView, adapters: StepAdapters | None) -> Tensor:
        if view.query_lens is None:
            sizes.append(tuple(view.block_table.shape))
        return forward(runner, view, adapters)

    monkeypatch.setattr(CudaRunner, "_forward", noted)
    start(CpuDevice(), graphs="off")
    assert sizes == [(1, 1), (2, 1)]
    start(CpuDevice(), graphs="off", table=TWINS)
    assert len(sizes) == 2


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


def test_a_step_is_queued_on_the_runner_s_device_whatever_thread_calls(
    start: Callable[..., CudaRunner], files: ModelFiles
) -> None:
    """A new thread begins with device 0, where Triton would launch and events would be recorded."""
    current, used = threading.local(), []

    class SecondDevice(CpuDevice):
        def use(self) -> None:
            current.index = 1

        def mark(self) -> Mark:
            used.append(getattr(current, "index", 0))
            return super().mark()

    runner = start(SecondDevice())
    assert files.spec is not None
    sampling = warm_up_sampling(1, files.spec.num_tokens)

    def run(call: Callable[[], object]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    run(lambda: runner.forward(warm_up_step((5,), 16)))
    run(lambda: runner.sample(0, sampling))
    assert used == [1, 1]
    assert runner.collect(0).num_tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), DoesNotFit, "the weights should take"),
        (RuntimeError("CUDA error: out of memory"), DoesNotFit, "the weights should take"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), DeviceLost, "memory is faulty"),
        (RuntimeError("CUDA error: no kernel image is available"), BackendError, "built for other GPUs"),
        (CalledProcessError(1, ["/usr/bin/gcc"]), BackendError, "install gcc and Python's headers"),
    ],
)
def test_a_load_that_fails_is_told_in_words(
    start: Callable[..., CudaRunner],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(failures, "compiler_errors", lambda: (CalledProcessError,))  # as where Triton is

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(CudaRunner, "_prepared_ops", fail)
    with pytest.raises(kind, match=words):
        start(CpuDevice())


def test_a_device_that_fails_behind_a_lack_of_memory_is_lost(start: Callable[..., CudaRunner]) -> None:
    """Nothing of a step counts, and the process has to end: the words are not the step's alone."""
    device = CpuDevice()
    runner = start(device)
    step = warm_up_step((5,), 16)
    runner.forward(step)
    runner._steps[0].failure = OutOfMemory("the step ran out of memory")

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device.synchronise = fail  # type: ignore[method-assign]
    with pytest.raises(DeviceLost, match="illegal memory access"):
        runner.collect(0)


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


def test_a_few_sequences_after_many_give_the_eager_tokens(
    start: Callable[..., CudaRunner], files: ModelFiles
) -> None:
    """What the buckets of many sequences have left in memory is read as no block by that of few."""
    assert files.spec is not None
    tokens = []
    for graphs in ("on", "off"):
        runner, found = start(CpuDevice(), LARGER, graphs=graphs), []
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
