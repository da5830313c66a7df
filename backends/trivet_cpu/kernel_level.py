"""Which level of the kernels this process takes, and why none that the CPU could run better."""

from __future__ import annotations

from dataclasses import dataclass

from trivet_cpu.host import Host, without_tiles
from trivet_cpu.kernel_build import KernelCache, levels_of

TILE_LEVEL = "amx"


@dataclass(frozen=True, slots=True)
class KernelLevel:
    """A level, and what keeps the CPU's best away where it is another one."""

    name: str
    not_best_because: str | None = None


def choose_level(host: Host, kernels: KernelCache, arch: str) -> KernelLevel:
    """For a CPU with these flags; asks for the leave to use its tiles. Nothing is built."""
    return _chosen(host, kernels, arch, retries=False)


def level_to_build(host: Host, kernels: KernelCache) -> KernelLevel:
    """For this CPU, whether or not its build has just failed."""
    return _chosen(host, kernels, host.arch(), retries=True)


def _chosen(host: Host, kernels: KernelCache, arch: str, *, retries: bool) -> KernelLevel:
    refusal = host.why_no_tiles()
    usable = arch if refusal is None else without_tiles(arch)
    level, best = kernels.best_level(usable, retries=retries), levels_of(usable)[0]
    if level != best and not retries and kernels.recent_failure(best) is not None:
        return KernelLevel(level, f"{best} did not build (`trivet kernels build` tries again and says why)")
    if level != best:
        return KernelLevel(
            level,
            f"the compiler does not know the flags of {best} (GCC 11 does), and no library of it is there",
        )
    return KernelLevel(level, None if refusal is None else f"for the CPU's AMX tiles {refusal}")
