"""`trivet bench startup`: a real engine process from its start to READY, and the phases of a start."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec
from tqdm import tqdm

from trivet.bench.engine_start import start_engine
from trivet.bench.figures import Figures
from trivet.bench.load import Measured
from trivet.bench.machine import machine
from trivet.bench.startup import Mark, Order
from trivet.commands.bench.offline import model_path, num_threads
from trivet.commands.bench.report import Report
from trivet.commands.connecting import given_settings
from trivet.config import inherited_environment
from trivet.engine.placement import place
from trivet.engine_settings import parse_engine_settings
from trivet.errors import BackendError
from trivet.models.model_files import open_model
from trivet.plugins import load_plugins

CHILD_MODULE = "trivet.bench.startup"


def bench_startup(given: argparse.Namespace) -> int:
    """The first run, with cold file caches and perhaps kernels to build, is not counted."""
    settings = given_settings(given)
    before = machine()
    model = model_path(given)
    host = load_plugins()
    files = open_model(model, host)
    uids = (given.device,) if given.device else ()
    placement = place(host, files, parse_engine_settings(settings), given.backend, uids)
    env = {**inherited_environment(), **placement.backend.launch_env(placement.devices)}
    order = Order(str(model), placement.backend.name, given.device, settings)
    turns = tqdm(range(given.repeats + 1), desc="start", unit="run", disable=None, leave=False)
    runs = [{**one_child(order, env), **start_engine(order, env)} for _ in turns]
    config: dict[str, object] = {
        "model": files.name,
        "quantization": files.quantization,
        "backend": order.backend,
        "num_threads": num_threads(placement, settings),
        "settings": settings or None,
    }
    measured = Measured(runs[1:], {}, is_counted_by_server=True)
    Report("startup", config, before, measured.as_json()).show(given)
    return 0


def one_child(order: Order, env: Mapping[str, str]) -> Figures:
    """The phases of a start, in a process of their own. Raises: BackendError with its last words."""
    start = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-m", CHILD_MODULE, msgspec.json.encode(order).decode()],
        capture_output=True,
        text=True,
        check=False,
        env=dict(env),
    )
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise BackendError(f"the new process ended with exit code {child.returncode}: {last}")
    return phase_figures(msgspec.json.decode(child.stdout, type=list[Mark]), start)


def phase_figures(marks: Sequence[Mark], start_s: float) -> Figures:
    """`startup_s` is the sum of the phases; `load_s` is from the imports' end to a loaded model."""
    figures: Figures = {"startup_s": marks[-1].at_s - start_s}
    before = start_s
    ends = {}
    for mark in marks:
        ends[mark.phase] = mark.at_s
        figures[f"phase_{mark.phase}_s"] = mark.at_s - before
        figures[f"rss_after_{mark.phase}_bytes"] = mark.rss_bytes
        before = mark.at_s
    figures["load_s"] = ends["warm_up"] - ends["imports"]
    figures["first_token_s"] = ends["first_token"] - ends["warm_up"]
    return figures
