"""The plan beside what the runner takes, measures and tells."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trivet.errors import DoesNotFit
from trivet.models.model_files import ModelFiles
from trivet.runners.collectives import Alone
from trivet.runners.sharded_weights import Linear, Packer, Plain
from trivet_cuda import memory_plan
from trivet_cuda.backend import CudaBackend
from trivet_cuda.device import Captured
from trivet_cuda.runner import CudaRunner

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, CpuDevice


def parts_of(runner: CudaRunner) -> dict[str, int]:
    return {part.name: part.size_bytes for part in runner.memory()}


def test_memory_tells_the_peaks_of_a_step_and_what_graphs_took(start: Callable[..., CudaRunner]) -> None:
    """Not what was planned for them."""
    device, free = CpuDevice(peak=3 << 20), 1 << 36

    def capture(run: Callable[[], Tensor]) -> Captured:
        device.free -= 5 << 20
        return CpuDevice.capture(device, run)

    device.capture = capture  # type: ignore[method-assign]
    runner = start(device, graphs="on")
    found = parts_of(runner)
    assert found["activations"] == found["logits"] == 3 << 20
    assert found["graphs"] == free - device.free == 2 * (5 << 20)  # of one and of two sequences
    assert runner.notices() == ()
    assert found["context"] == runner._planned("context")


def test_graphs_that_take_more_than_planned_are_told(start: Callable[..., CudaRunner]) -> None:
    """Another model may be planned on what they took."""
    device = CpuDevice()

    def capture(run: Callable[[], Tensor]) -> Captured:
        device.free -= 1 << 30
        return CpuDevice.capture(device, run)

    device.capture = capture  # type: ignore[method-assign]
    (notice,) = start(device, graphs="on").notices()
    assert notice.startswith("captured decodes took 2.00 GiB of the GPU and 0.0")
    assert "set options.graphs to off" in notice


def test_ranks_plan_no_graphs_that_they_do_not_capture(files: ModelFiles) -> None:
    assert files.spec is not None
    for graphs, is_planned in (("auto", False), ("on", True)):
        options = {**CONFIG.options, "graphs": graphs}
        config = replace(CONFIG, tensor_parallel=2, options=options)
        plan = CudaBackend().plan(files.spec, files.weights, config, [INFO, INFO])
        assert ("graphs" in {part.name for part in plan.parts}) == is_planned


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_each_rank_has_a_claim_to_memory_of_its_host(files: ModelFiles, num_ranks: int) -> None:
    assert files.spec is not None
    config = replace(CONFIG, tensor_parallel=num_ranks)
    plan = CudaBackend().plan(files.spec, files.weights, config, [INFO] * num_ranks)
    assert plan.host_bytes == num_ranks * (2 << 30)
    assert plan.total_bytes == sum(part.size_bytes for part in plan.parts)  # of the device alone


@pytest.mark.parametrize(("fraction", "share"), [(None, 0.9), (0.9, 1.0)])
def test_beside_others_something_is_left_unless_the_operator_says_how_much(
    files: ModelFiles, fraction: float | None, share: float
) -> None:
    assert files.spec is not None
    free = 5 << 28
    config = replace(CONFIG, memory_fraction=fraction, num_blocks=None, max_model_len=4096, max_num_seqs=256)
    plan = CudaBackend().plan(
        files.spec, files.weights, config, [replace(INFO, total_bytes=4 * free, free_bytes=free)]
    )
    assert 0.99 * share * free < plan.total_bytes <= share * free


def test_ranks_are_planned_for_the_gpu_of_which_the_least_may_be_used(files: ModelFiles) -> None:
    """Not for that with the least free: of the other the operator's share is smaller still."""
    assert files.spec is not None
    gib = 1 << 30
    devices = [
        replace(INFO, total_bytes=80 * gib, free_bytes=gib),
        replace(INFO, total_bytes=gib * 106 // 100, free_bytes=gib * 105 // 100),
    ]
    config = replace(
        CONFIG,
        tensor_parallel=2,
        memory_fraction=0.9,
        num_blocks=None,
        max_model_len=4096,
        max_num_seqs=256,
    )
    plan = CudaBackend().plan(files.spec, files.weights, config, devices)
    share = int(0.9 * devices[1].total_bytes)
    assert 0.99 * share < plan.total_bytes <= share


def test_what_the_allocator_rounds_up_is_planned(
    files: ModelFiles, start: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each large tensor as it is on the device; the whole KV cache is one."""
    monkeypatch.setattr(memory_plan, "LARGE_BYTES", 20_000)
    monkeypatch.setattr(memory_plan, "STEP_BYTES", 7_000)
    held: list[Plain] = []
    pack = Packer.pack

    def noted(packer: Packer, *args: Any) -> Any:
        packed = pack(packer, *args)
        held.extend([packed.matrix] if isinstance(packed, Linear) else [])
        return packed

    monkeypatch.setattr(Packer, "pack", noted)
    runner = start(CpuDevice())
    sizes = [matrix.weight.nbytes for matrix in held]
    assert min(sizes) < 20_000 < max(sizes)
    rounded = sum(-size % 7_000 for size in sizes if size >= 20_000)
    planned = runner._planned("context") - memory_plan.CONTEXT_BYTES
    assert planned == rounded + memory_plan.SEGMENTS_BYTES + 7_000
    assert runner._kv is not None
    assert len({each.untyped_storage().data_ptr() for each in runner._kv.layers[0][:2]}) == 1
    assert runner._kv.layers[0].keys.untyped_storage().nbytes() == runner._planned("kv")


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


def test_the_peak_of_the_rank_that_takes_most_counts_on_all(start: Callable[..., CudaRunner]) -> None:
    """A twin of one rank takes more than the others' kernel; then all are refused, or none."""

    class OtherTakesMore(Alone):
        def concatenate(self, x: Tensor) -> Tensor:
            return torch.cat((x, 3 * x), -1)

    runner = start(CpuDevice(peak=1 << 20))
    assert runner.peaks() == {"activations": 1 << 20, "logits": 1 << 20}
    runner._collectives = OtherTakesMore()
    with runner._measured_as("activations"):
        pass
    assert runner.peaks() == {"activations": 3 << 20, "logits": 1 << 20}


def test_what_graphs_leave_has_to_hold_a_step(start: Callable[..., CudaRunner]) -> None:
    device = CpuDevice(peak=1 << 20)

    def capture(run: Callable[[], Tensor]) -> Captured:
        device.free = 1 << 19
        return CpuDevice.capture(device, run)

    device.capture = capture  # type: ignore[method-assign]
    with pytest.raises(DoesNotFit, match=r"options\.graphs to off"):
        start(device, graphs="on")


def test_graphs_without_memory_are_told_with_what_goes_without_them(start: Callable[..., CudaRunner]) -> None:
    with pytest.raises(DoesNotFit, match=r"captured decodes .* options\.graphs to off"):
        start(CpuDevice(refuses="CUDA error: out of memory"))
