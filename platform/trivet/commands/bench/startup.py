"""`trivet bench startup`: from a new process to its first token, phase by phase."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import msgspec

from trivet.bench.figures import Figures
from trivet.bench.load import Measured
from trivet.bench.machine import machine
from trivet.bench.startup import Marks, Order
from trivet.commands.bench.offline import model_path
from trivet.commands.bench.report import Report
from trivet.commands.connecting import parse_pairs
from trivet.errors import BackendError

CHILD_MODULE = "trivet.bench.startup"


def bench_startup(given: argparse.Namespace) -> int:
    """The first run, with cold file caches, is not counted."""
    settings = parse_pairs(given.pairs)
    before = machine()
    model = model_path(given)
    order = Order(str(model), given.backend, given.device, settings)
    runs = [one_run(order) for _ in range(given.repeats + 1)][1:]
    config: dict[str, object] = {"model": model.name, "backend": order.backend, "settings": settings or None}
    measured = Measured(runs, {}, is_counted_by_server=True)
    Report("startup", config, before, measured.as_json()).show(given)
    return 0


def one_run(order: Order) -> Figures:
    """Seconds of each phase from the start of the process, and what is resident at its end."""
    start = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-m", CHILD_MODULE, msgspec.json.encode(order).decode()],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise BackendError(f"the new process ended with exit code {child.returncode}: {last}")
    return figures_of(msgspec.json.decode(child.stdout, type=Marks), start)


def figures_of(marks: Marks, start_s: float) -> Figures:
    """`startup_s` is the sum of the phases; `load_s` is from the imports' end to a loaded model."""
    figures: Figures = {"startup_s": marks.marks[-1].at_s - start_s}
    before = start_s
    ends = {}
    for mark in marks.marks:
        ends[mark.phase] = mark.at_s
        figures[f"phase_{mark.phase}_s"] = mark.at_s - before
        figures[f"rss_after_{mark.phase}_bytes"] = mark.rss_bytes
        before = mark.at_s
    figures["load_s"] = ends["warm_up"] - ends["imports"]
    figures["first_token_s"] = ends["first_token"] - ends["warm_up"]
    figures |= {f"memory_{name}_bytes": size for name, size in marks.memory_parts.items()}
    return figures | dict(marks.rss.items())
