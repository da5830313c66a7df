"""What is said where torch-npu cannot be imported, and what an error of a step means."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivet.errors import BackendError, DeviceLost
from trivet_ascend.npu_device import NpuDevice, as_step_failure


@pytest.fixture
def torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of that name, to be written by the test."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "torch_npu.py"
    sys.modules.pop("torch_npu", None)


@pytest.mark.parametrize(
    ("raised", "cure"),
    [
        ("ImportError('libhccl.so: cannot open shared object file')", "ascend-toolkit/set_env.sh"),
        ("OSError('libatb.so: cannot open shared object file')", "nnal/atb/set_env.sh"),
        ("RuntimeError('Two accelerators cannot be used at the same time')", "environment of its own"),
        ("AttributeError(\"module 'torch._C' has no attribute '_npu'\")", "has no attribute '_npu'"),
    ],
)
def test_a_failed_import_is_told_with_its_reason_and_a_cure(torch_npu: Path, raised: str, cure: str) -> None:
    torch_npu.write_text(f"raise {raised}\n")
    with pytest.raises(BackendError, match="torch-npu cannot be imported") as failure:
        NpuDevice(0)
    assert raised.partition("(")[0] in str(failure.value)
    assert cure in str(failure.value)


def test_a_missing_torch_npu_is_told_with_what_to_install() -> None:
    if "torch_npu" in sys.modules:
        pytest.skip("torch-npu is here")
    with pytest.raises(
        BackendError, match=r"No module named 'torch_npu'; install torch-npu of torch's version"
    ):
        NpuDevice(0)


def test_an_error_of_its_own_is_not_taken_for_a_failed_import(torch_npu: Path) -> None:
    torch_npu.write_text("raise KeyError('a fault of the program')\n")
    with pytest.raises(KeyError):
        NpuDevice(0)


@pytest.mark.parametrize(
    ("text", "is_final"),
    [
        ("error code is 507018, device task abort", True),
        ("aclrtSynchronizeStream failed", True),
        ("aclnnMatmul failed, error code is 161002", False),
    ],
)
def test_a_fault_of_the_device_is_final_and_a_refused_call_is_not(text: str, is_final: bool) -> None:
    failure = as_step_failure(RuntimeError(text))
    assert isinstance(failure, DeviceLost) == is_final
    assert text in str(failure)
