"""Machines without NVML, whose nvidia-smi prints what we say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivet_cuda.backend import CudaBackend

FIRST, SECOND = "GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"
TWO_GPUS = (
    f"0, {FIRST}, 00000000:1A:00.0, NVIDIA H100 80GB HBM3, 9.0, 81559, 81008, 565.10, Disabled\n"
    f"1, {SECOND}, 00000000:3D:00.0, Tesla V100-SXM2-32GB, 7.0, 32768, 12000, 565.10, [N/A]\n"
)


def tool(folder: Path, script: str) -> str:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def printing(folder: Path, text: str) -> str:
    (folder / "answer").write_text(text)
    return tool(folder, f"cat {folder / 'answer'}")


def without_nvml(root: Path, nvidia_smi: str) -> CudaBackend:
    """Whatever this machine has installed, and its environment names."""

    def missing() -> Any:
        raise ImportError("no pynvml")

    return CudaBackend(root, nvidia_smi, missing, dict)
