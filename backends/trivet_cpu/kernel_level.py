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
    refusal = host.why_no_tiles()
    usable = arch if refusal is None else without_tiles(arch)
    level, best = kernels.best_level(usable), levels_of(usable)[0]
    if level != best:
        return KernelLevel(
            level,
            f"the compiler does not know the flags of {best} (GCC 11 does), and no library of it is there",
        )
    return KernelLevel(level, None if refusal is None else f"for the CPU's AMX tiles {refusal}")
