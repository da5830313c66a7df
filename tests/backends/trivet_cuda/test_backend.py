"""What runs on a GPU and what it takes, by the torch-free half."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from trivet import self_test
from trivet.contract import DeviceInfo, RunnerConfig
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import BackendError, DoesNotFit, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet_cuda import device as device_module
from trivet_cuda import op_table
from trivet_cuda.backend import CudaBackend, resolve_shape
from trivet_cuda.memory_plan import kv_cache_spec
from trivet_cuda.op_table import TWINS

GIB = 1 << 30
H100 = DeviceInfo(
    "cuda", 0, "GPU-1", "NVIDIA H100", "sm_90", 80 * GIB, 79 * GIB, frozenset({"f32", "f16", "bf16"})
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny_model("mistral", tmp_path_factory.mktemp("models")))


def config(**changes: Any) -> RunnerConfig:
    return replace(RunnerConfig(max_model_len=512, max_num_seqs=8), **changes)


def check(files: ModelFiles, device: DeviceInfo = H100, **changes: Any) -> None:
    assert files.spec is not None
    CudaBackend().check(files.spec, files.weights, config(**changes), device)


def test_the_usual_settings_are_taken(files: ModelFiles) -> None:
    check(files)
    check(
        files,
        kv_dtype="int8",
        options={"graphs": "off", "weights": "plain", "num_threads": "1", "attention": "triton"},
    )
    check(files, kv_dtype="fp8", tensor_parallel=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"speed": "high"}}, "'speed' is unknown"),
        ({"options": {"attention": "flashy"}}, "'flashy'; use triton"),
        ({"options": {"attention": "flashinfer"}}, "takes heads of 64, 128, 256"),
        ({"options": {"attention": "flashinfer"}, "kv_dtype": "int8"}, "kv_cache_dtype int8"),
        ({"options": {"graphs": "maybe"}}, "use auto, on, off"),
        ({"kv_dtype": "int4"}, "use auto, int8 or fp8_e4m3"),
        ({"dtype": "f64"}, "'f64'"),
        ({"block_size": 24}, "block_size 24"),
        ({"tensor_parallel": 3}, "does not divide"),
    ],
)
def test_what_does_not_run_is_refused_with_what_would(
    files: ModelFiles, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        check(files, **changes)


def test_float8_needs_ada_and_int8_is_named_in_its_place(files: ModelFiles) -> None:
    with pytest.raises(Unsupported, match="use int8"):
        check(files, replace(H100, arch="sm_80", name="NVIDIA A100"), kv_dtype="fp8_e4m3")
    check(files, replace(H100, arch="sm_89"), kv_dtype="fp8_e4m3")


def test_a_cache_of_8_bits_takes_half_and_its_scales(files: ModelFiles) -> None:
    assert files.spec is not None
    sizes = {}
    for kv_dtype in ("auto", "int8", "fp8_e4m3"):
        shape = resolve_shape(files.spec, config(kv_dtype=kv_dtype), H100)
        sizes[kv_dtype] = kv_cache_spec(files.spec, shape).block_bytes
    heads = sum(2 * files.spec.layer(i).attention.num_kv_heads for i in range(files.spec.num_layers))
    assert sizes["fp8_e4m3"] * 2 == sizes["auto"]
    assert sizes["int8"] == sizes["fp8_e4m3"] + 16 * heads * 4


def test_ranks_share_weights_and_cache(files: ModelFiles) -> None:
    assert files.spec is not None
    backend, parts = CudaBackend(), {}
    for ranks in (1, 2):
        plan = backend.plan(
            files.spec, files.weights, config(tensor_parallel=ranks, num_blocks=40), [H100] * ranks
        )
        parts[ranks] = {part.name: part.size_bytes for part in plan.parts}
    assert parts[2]["kv"] * 2 == parts[1]["kv"]
    assert parts[2]["weights"] < 0.55 * parts[1]["weights"]
    assert "collectives" in parts[2]


def test_a_full_device_is_refused_with_both_numbers(files: ModelFiles) -> None:
    assert files.spec is not None
    with pytest.raises(DoesNotFit, match=r"GiB.*GiB"):
        CudaBackend().plan(files.spec, files.weights, config(), [replace(H100, free_bytes=GIB // 4)])


def test_a_step_has_a_bucket_and_buckets_are_close_where_they_are_small(files: ModelFiles) -> None:
    assert files.spec is not None
    shape = resolve_shape(files.spec, config(max_num_seqs=100), H100)
    assert shape.buckets == (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 100)


def test_a_runner_without_cuda_says_what_is_missing(files: ModelFiles) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU here")
    assert files.spec is not None
    backend = CudaBackend()
    plan = backend.plan(files.spec, files.weights, config(num_blocks=40), [H100])
    with pytest.raises(BackendError, match=r"torch .*CUDA"):
        backend.create_runner(files.spec, config(num_blocks=40), plan, [H100])


def test_it_offers_a_self_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "triton":
            raise PackageNotFoundError(name)
        return "3.7.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    backend = CudaBackend(tmp_path, str(tmp_path / "nvidia-smi"), no_nvml, dict)
    assert isinstance(backend, self_test.TestsItself)
    assert backend.self_test_versions() == {"triton": "3.7.1", "nvidia-ml-py": "not installed"}


def no_nvml() -> object:
    raise ImportError("no nvidia-ml-py")


class Opened:
    """What the self-test is told of the card that it runs on."""

    def __init__(self, uid: str) -> None:
        self.label = f"NVIDIA H100, sm_90, {uid}"


def test_the_report_begins_with_the_card_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its place among those that may be used here, whatever CUDA's own order is."""
    monkeypatch.setattr(device_module, "open_by_uid", lambda uid, environment: Opened(uid))
    monkeypatch.setattr(device_module, "CudaDevice", lambda index: Opened(f"number {index}"))
    monkeypatch.setattr(op_table, "triton_table", lambda: TWINS)
    backend = CudaBackend()
    found = [replace(H100, uid="GPU-0", unusable_because="lost"), replace(H100, uid="GPU-2"), H100]
    monkeypatch.setattr(backend, "probe", lambda timeout_s: found)
    labels = [next(backend.self_test(number)) for number in (0, 1, 2)]
    assert [label.ops for label in labels] == [("device",)] * 3
    assert [label.case.rpartition(" ")[2] for label in labels] == ["GPU-2", "GPU-1", "2"]
    assert all(label.passed for label in labels)
