"""The result of a benchmark, with what one needs to know to compare it: machine, versions, command."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from trivet import __version__
from trivet.commands.bench.timeline import Figures, medians, spreads
from trivet.commands.output import bytes_text, print_json

BYTES_KEYS = ("peak_rss_bytes",)


def machine() -> dict[str, object]:
    """What stands behind the figures. The load average tells whether the machine was quiet."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "trivet": __version__,
        "torch": _version("torch"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def report(
    kind: str,
    config: Mapping[str, object],
    runs: Sequence[Figures],
    before: Mapping[str, object],
    as_json: bool,
) -> None:
    """Print medians and spreads. `before`: `machine()` from before the first run."""
    figures = {name: _rounded(value) for name, value in medians(runs).items()}
    spread = {name: [_rounded(low), _rounded(high)] for name, (low, high) in spreads(runs).items()}
    if as_json:
        head = {"benchmark": kind, "command": " ".join(["trivet", *sys.argv[1:]])}
        print_json(
            {**head, "machine": before, "config": config, **figures, "num_runs": len(runs), "spread": spread}
        )
        return
    print(f"{kind}: {', '.join(f'{key} {value}' for key, value in config.items() if value is not None)}")
    print(
        f"{before['cpu']}, {before['cores']} cores, load {before['load_average']} before; "
        f"median of {len(runs)} runs"
    )
    for name, value in figures.items():
        low, high = spread[name]
        if name in BYTES_KEYS:
            print(f"  {name:<22} {bytes_text(int(value)):>12}")
        else:
            print(f"  {name:<22} {value:>12,.2f}   {low:,.2f} to {high:,.2f}")


def _rounded(value: float) -> float:
    return round(value) if value >= 1e5 else round(value, 3)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # Arm kernels write no model name
