"""Which torch-npu, CANN, driver and environment belong together; `trivet doctor` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from trivet.optional_contract import Advice
from trivet_ascend.explanations import cure_for

# CANN by torch-npu, from the tables in the wheels' own descriptions (2.10.0.post4, 2.13.0, 2.14.0); that of
# 2.13.0 ends with 2.12. vllm-ascend runs 2.10.0.post4 with CANN 9.1.0.
CANN_FOR = {(2, 10): "8.5.0", (2, 11): "8.5.0", (2, 12): "8.5.0", (2, 14): "9.1.0"}


def advices(found: Mapping[str, str], torch_npu: str | None) -> Iterator[Advice]:
    """About a host with NPUs.

    Args:
        found: driver, firmware and CANN as their version files say.
        torch_npu: its version in the environment of this backend's engines; None where it is not installed.
    """
    versions = ", ".join(f"{name} {text}" for name, text in found.items()) or "none found"
    if "driver" not in found:
        yield Advice(
            "warn", f"versions: {versions}", "mount /usr/local/Ascend/driver/version.info, or install it"
        )
    elif "cann" not in found:
        cure = "install the CANN toolkit and kernels; " + cure_for("libhccl.so").removeprefix("; ")
        yield Advice("fail", f"versions: {versions}; no CANN", cure)
    else:
        yield Advice("ok", f"versions: {versions}")
    if torch_npu is None:
        yield Advice(
            "warn",
            "torch-npu is not installed in the environment of this backend",
            "make an environment of its own, pip install 'trivet[ascend]' there, and name its python under "
            "[backend.ascend] in trivet.toml",
        )
    elif "cann" in found:
        yield _pairing(torch_npu, found["cann"])


def _pairing(torch_npu: str, cann: str) -> Advice:
    match = re.match(r"(\d+)\.(\d+)", torch_npu)
    wanted = CANN_FOR.get((int(match[1]), int(match[2]))) if match else None
    if wanted is None:
        return Advice("ok", f"torch-npu {torch_npu} with CANN {cann}; its release names no pair for it")
    if _numbers(cann) < _numbers(wanted):
        text = f"torch-npu {torch_npu} is made for CANN {wanted} and this is {cann}"
        return Advice("fail", text, f"install CANN {wanted} or newer, or an older torch-npu and torch")
    return Advice("ok", f"torch-npu {torch_npu} with CANN {cann} (made for {wanted})")


def _numbers(release: str) -> tuple[int, ...]:
    """Of "8.5.0" or "8.3.RC1", whose candidates come before the release."""
    parts = re.split(r"[.\s]", release.upper())
    return tuple(int(part) if part.isdigit() else -1 for part in parts[:3])


def installed_torch_npu() -> str | None:
    """Without importing it."""
    try:
        return version("torch-npu")
    except PackageNotFoundError:
        return None
