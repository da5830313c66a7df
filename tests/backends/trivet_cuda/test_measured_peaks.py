"""What a start measures is what the next plan counts with, from the first refusal on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, Peaks, Runner, RunnerConfig
from trivet.engine import assembly, backend_answers, measured_peaks
from trivet.engine.assembly import assemble
from trivet.engine.measured_peaks import PeakStore
from trivet.engine.placement import Placement
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit
from trivet.models.model_files import ModelFiles
from trivet.models.spec import ModelSpec
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.runner import CudaRunner

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, KERNELS, CpuDevice

MIB = 1 << 20


class OnCpu(CudaBackend):
    """Whose steps take `peak` bytes."""

    peak = 0

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        return CudaRunner(
            spec, plan, runner_shape(spec, config, plan, devices), CpuDevice(self.peak), KERNELS
        )


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> OnCpu:
    monkeypatch.setattr(assembly, "load_tokenizer", lambda path: None)
    monkeypatch.setattr(assembly, "GrammarCompiler", lambda *args: None)
    return OnCpu()


def placed(
    backend: OnCpu, files: ModelFiles, peaks: PeakStore, config: RunnerConfig, device: DeviceInfo
) -> Placement:
    assert files.spec is not None
    told = peaks.told(config, backend.name, files, [device])
    plan = backend_answers.plan(backend, files.spec, files, told, [device])
    return Placement(backend, (device,), config, plan)


def size_of(placement: Placement, *names: str) -> int:
    return sum(part.size_bytes for part in placement.plan.parts if part.name in names)


def test_the_next_plan_counts_with_what_a_start_has_measured(
    backend: OnCpu, files: ModelFiles, tmp_path: Path
) -> None:
    """KV gets what the bound had too much."""
    peaks, device = PeakStore(tmp_path / "peaks"), replace(INFO, total_bytes=800 * MIB)
    options = {**CONFIG.options, "graphs": "off"}
    config = replace(CONFIG, num_blocks=None, max_num_seqs=256, max_model_len=1024, options=options)
    before = placed(backend, files, peaks, config, device)
    backend.peak = 2 * MIB
    assemble(files, before, EngineSettings(max_num_seqs=256), peaks=peaks).close()
    after = placed(backend, files, peaks, config, device)
    for name in ("activations", "logits"):
        assert size_of(after, name) == 3 * MIB < size_of(before, name)
    assert after.plan.num_blocks > before.plan.num_blocks
    limit = 0.9 * device.total_bytes
    assert limit - after.plan.kv.block_bytes <= after.plan.total_bytes <= limit
    runner = assemble(files, after, EngineSettings(max_num_seqs=256), peaks=peaks).runner
    held = {part.name: part.size_bytes for part in runner.memory()}
    assert held["kv"] == size_of(after, "kv") == after.plan.num_blocks[0] * after.plan.kv.block_bytes
    runner.close()


def test_a_start_that_its_peak_has_ended_is_not_refused_again_for_that(
    backend: OnCpu, files: ModelFiles, tmp_path: Path
) -> None:
    peaks, settings = PeakStore(tmp_path / "peaks"), EngineSettings(max_num_seqs=2)
    first = placed(backend, files, peaks, CONFIG, INFO)
    backend.peak = size_of(first, "activations", "logits") + 100 * MIB
    with pytest.raises(DoesNotFit, match="start it again, which plans with what was measured"):
        assemble(files, first, settings, peaks=peaks)
    second = placed(backend, files, peaks, CONFIG, INFO)
    assert size_of(second, "activations") > backend.peak
    assert second.plan.num_blocks == first.plan.num_blocks
    assemble(files, second, settings, peaks=peaks).close()


def test_a_peak_for_which_there_is_no_room_is_refused_before_a_start(
    backend: OnCpu, files: ModelFiles, tmp_path: Path
) -> None:
    """With both numbers and what would do."""
    peaks, device = PeakStore(tmp_path / "peaks"), replace(INFO, total_bytes=2 << 30, free_bytes=2 << 30)
    first = placed(backend, files, peaks, CONFIG, device)
    backend.peak = 2 << 30
    with pytest.raises(DoesNotFit):
        assemble(files, first, EngineSettings(max_num_seqs=2), peaks=peaks)
    with pytest.raises(DoesNotFit, match=r"needs [45]\.\d\d GiB .* and 1\.80 GiB may be used; .*"):
        placed(backend, files, peaks, CONFIG, device)


def test_peaks_are_of_the_same_choices_only(backend: OnCpu, files: ModelFiles, tmp_path: Path) -> None:
    """Not of another dtype, size of a step, kind of card, driver or host; of any length and share of KV."""
    peaks = PeakStore(tmp_path / "peaks")
    backend.peak = 20 * MIB
    assemble(
        files, placed(backend, files, peaks, CONFIG, INFO), EngineSettings(max_num_seqs=2), peaks=peaks
    ).close()

    def known(config: RunnerConfig, device: DeviceInfo) -> bool:
        plan = placed(backend, files, peaks, config, device)
        return size_of(plan, "activations") == 21 * MIB

    same = (
        replace(CONFIG, num_blocks=40),
        replace(CONFIG, max_model_len=32),
        replace(CONFIG, memory_fraction=0.5),
        replace(CONFIG, max_num_batched_tokens=2048),  # what is chosen where nothing is said
    )
    others = (
        replace(CONFIG, dtype="bf16"),
        replace(CONFIG, kv_dtype="int8"),
        replace(CONFIG, max_num_seqs=3),
        replace(CONFIG, max_num_batched_tokens=1024),
        replace(CONFIG, options={**CONFIG.options, "graphs": "off"}),
    )
    assert all(known(config, INFO) for config in same)
    assert not any(known(config, INFO) for config in others)
    assert known(CONFIG, replace(INFO, uid="GPU-2", index=1, free_bytes=1 << 34))
    for device in (
        replace(INFO, name="another"),
        replace(INFO, versions=(("driver", "1"),)),
        replace(INFO, host="other"),
    ):
        assert not known(CONFIG, device)


def test_steps_of_two_sizes_are_kept_beside_each_other(
    backend: OnCpu, files: ModelFiles, tmp_path: Path
) -> None:
    peaks, small = PeakStore(tmp_path / "peaks"), replace(CONFIG, max_num_batched_tokens=64)
    for config, peak in ((CONFIG, 20), (small, 2), (CONFIG, 40)):
        backend.peak = peak * MIB
        start = placed(backend, files, peaks, config, INFO)
        assemble(files, start, EngineSettings(max_num_seqs=2), peaks=peaks).close()
    assert size_of(placed(backend, files, peaks, CONFIG, INFO), "logits") == 42 * MIB
    assert size_of(placed(backend, files, peaks, small, INFO), "logits") == 3 * MIB
    assert [file.suffix for file in (tmp_path / "peaks").iterdir()] == [".json", ".json"]


def test_the_newest_sizes_of_a_case_are_kept(
    backend: OnCpu, files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_peaks, "MAX_SIZES", 2)
    peaks, backend.peak = PeakStore(tmp_path / "peaks"), 20 * MIB
    for size in (64, 128, 256):
        config = replace(CONFIG, max_num_batched_tokens=size)
        start = placed(backend, files, peaks, config, INFO)
        assemble(files, start, EngineSettings(max_num_seqs=2), peaks=peaks).close()
    told = peaks.told(CONFIG, backend.name, files, [INFO]).peaks
    assert [each.max_num_batched_tokens for each in told] == [128, 256]


def test_tensors_are_looked_through_once_for_all_that_is_asked_of_a_model(
    backend: OnCpu, files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not fit asks for each change that might help."""
    peaks, backend.peak, looks = PeakStore(tmp_path / "peaks"), 20 * MIB, []
    monkeypatch.setattr(measured_peaks, "astuple", lambda spec: looks.append(spec) or ())
    peaks.told(CONFIG, backend.name, files, [INFO])
    assert not looks  # nothing was ever measured here
    start = placed(backend, files, peaks, CONFIG, INFO)
    assemble(files, start, EngineSettings(max_num_seqs=2), peaks=peaks).close()
    for _ in range(3):
        assert peaks.told(CONFIG, backend.name, files, [INFO]).peaks
    assert len(looks) == 1


def test_a_device_that_does_not_tell_and_a_file_that_is_none_change_no_plan(
    backend: OnCpu, files: ModelFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peaks, settings = PeakStore(tmp_path / "peaks"), EngineSettings(max_num_seqs=2)
    first = placed(backend, files, peaks, CONFIG, INFO)
    assemble(files, first, settings, peaks=peaks).close()  # peak 0
    assert not (tmp_path / "peaks").exists()
    backend.peak = 20 * MIB
    assemble(files, first, settings, peaks=peaks).close()
    (file,) = (tmp_path / "peaks").iterdir()
    file.write_text("[{")
    assert placed(backend, files, peaks, CONFIG, INFO).plan == first.plan
    assert "plans count with bounds" in caplog.text


def test_a_home_that_cannot_be_written_ends_no_start(
    backend: OnCpu, files: ModelFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "peaks").write_text("in the way")
    peaks = PeakStore(tmp_path / "peaks")
    backend.peak = 20 * MIB
    start = placed(backend, files, PeakStore(), CONFIG, INFO)
    assemble(files, start, EngineSettings(max_num_seqs=2), peaks=peaks).close()
    assert "are not kept for the next plan" in caplog.text


def test_peaks_are_parts_of_the_contract() -> None:
    """A plan is a function of its arguments: what was measured is one of them."""
    config = RunnerConfig(peaks=(Peaks(2048, 4096, (MemoryPart("logits", 1),)),))
    assert hash(config.peaks)
