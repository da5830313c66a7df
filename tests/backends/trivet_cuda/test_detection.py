"""Finding NVIDIA GPUs, on made-up machines: a /proc and /sys tree, and a tool that prints what we say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from made_up_machines import FIRST, SECOND, TWO_GPUS, printing, tool, without_nvml


def _pci(root: Path, address: str, vendor: str, class_code: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", "0x2330"), ("class", class_code)):
        (folder / name).write_text(value + "\n")


def test_nvidia_smi_gives_uuid_memory_and_architecture(tmp_path: Path) -> None:
    first, second = without_nvml(tmp_path, printing(tmp_path, TWO_GPUS)).probe(5.0)
    assert (first.uid, first.arch, first.total_bytes, first.free_bytes) == (
        FIRST,
        "sm_90",
        81559 << 20,
        81008 << 20,
    )
    assert first.versions == (("driver", "565.10"),)
    assert (first.index, second.index) == (0, 1)
    assert "bf16" in first.dtypes
    assert "bf16" not in second.dtypes


def test_a_gpu_older_than_ampere_is_unusable_and_others_are_not(tmp_path: Path) -> None:
    first, second = without_nvml(tmp_path, printing(tmp_path, TWO_GPUS)).probe(5.0)
    assert first.unusable_because is None
    assert "7.0" in (second.unusable_because or "")


def test_a_failed_gpu_stays_listed_with_its_own_reason(tmp_path: Path) -> None:
    line = TWO_GPUS.splitlines()[0].replace("81559", "[GPU is lost]")
    (device,) = without_nvml(tmp_path, printing(tmp_path, line)).probe(5.0)
    assert "[GPU is lost]" in (device.unusable_because or "")


def test_a_gpu_in_mig_mode_says_what_lists_its_instances(tmp_path: Path) -> None:
    line = TWO_GPUS.splitlines()[0].replace("Disabled", "Enabled")
    (device,) = without_nvml(tmp_path, printing(tmp_path, line)).probe(5.0)
    assert "install nvidia-ml-py" in (device.unusable_because or "")


def test_a_hanging_tool_ends_within_its_time(tmp_path: Path) -> None:
    backend = without_nvml(tmp_path, tool(tmp_path, "exec sleep 600"))
    _pci(tmp_path, "0000:1a:00.0", "0x10de", "0x030200")
    (device,) = backend.probe(0.2)
    assert "no answer within 0.2 s" in (device.unusable_because or "")


def test_the_driver_lists_gpus_where_the_tool_is_missing(tmp_path: Path) -> None:
    driver = tmp_path / "proc/driver/nvidia"
    (driver / "gpus/0000:1a:00.0").mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.10  Mon Jan 1\n")
    (driver / "gpus/0000:1a:00.0/information").write_text(
        f"Model: \t\t NVIDIA A10\nGPU UUID: \t {FIRST}\nBus Location: \t 0000:1a:00.0\n"
    )
    (device,) = without_nvml(tmp_path, str(tmp_path / "nvidia-smi")).probe(5.0)
    assert (device.name, device.uid) == ("NVIDIA A10", FIRST)
    assert device.versions == (("driver", "565.10"),)
    assert "nvidia-smi was not found" in (device.unusable_because or "")


def test_a_gpu_without_driver_is_found_on_the_bus_and_its_audio_function_is_not(tmp_path: Path) -> None:
    _pci(tmp_path, "0000:1a:00.0", "0x10de", "0x030000")
    _pci(tmp_path, "0000:1a:00.1", "0x10de", "0x040300")
    _pci(tmp_path, "0000:1b:00.0", "0x8086", "0x030000")
    (device,) = without_nvml(tmp_path, str(tmp_path / "nvidia-smi")).probe(5.0)
    assert device.uid == "0000:1a:00.0"
    assert "driver is not loaded" in (device.unusable_because or "")


def test_a_machine_without_gpu_has_no_device_and_says_why(tmp_path: Path) -> None:
    backend = without_nvml(tmp_path, printing(tmp_path, "No devices were found\n"))
    assert backend.probe(5.0) == []
    assert backend.absent_because() == (
        "no NVIDIA GPU: none of PCI vendor 0x10de on the bus; nvidia-ml-py is not installed; "
        "nvidia-smi lists no GPU (No devices were found)"
    )


def test_a_gpu_that_the_loaded_driver_does_not_take_over_is_on_the_bus(tmp_path: Path) -> None:
    """Without an error: NVML and nvidia-smi count none where it fell off the bus, or has no device node."""
    _pci(tmp_path, "0000:1a:00.0", "0x10de", "0x030200")
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.10  Mon Jan 1\n")
    backend = without_nvml(tmp_path, printing(tmp_path, ""))
    (device,) = backend.probe(5.0)
    assert device.uid == "0000:1a:00.0"
    assert "driver 565.10 is loaded" in (device.unusable_because or "")
    assert "nvidia-smi lists no GPU (no line)" in (device.unusable_because or "")
    assert backend.absent_because() == ""


def test_a_machine_with_gpu_has_no_reason_to_be_absent(tmp_path: Path) -> None:
    assert without_nvml(tmp_path, printing(tmp_path, TWO_GPUS)).absent_because() == ""


def test_the_engine_sees_only_the_chosen_gpus(tmp_path: Path) -> None:
    backend = without_nvml(tmp_path, printing(tmp_path, TWO_GPUS))
    assert backend.launch_env(backend.probe(5.0)[1:])["CUDA_VISIBLE_DEVICES"] == SECOND


def test_probing_imports_no_torch_and_no_vendor_library() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'pynvml', 'cuda', 'cupy'): sys.modules[name] = None\n"
        "import trivet_cuda\n"
        "backend = trivet_cuda.trivet_backend()\n"
        "backend.probe(1.0); backend.absent_because(1.0); backend.launch_env([])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
