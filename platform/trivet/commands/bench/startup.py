"""`trivet bench startup`: from a new process to its first token."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from trivet.commands.bench.report import machine, report
from trivet.commands.bench.timeline import Figures
from trivet.commands.connecting import local_model, parse_pairs
from trivet.demo_model import find_demo_model
from trivet.errors import BackendError

CHILD_MODULE = "trivet.commands.bench.startup"


class Order(msgspec.Struct, frozen=True):
    """What the child loads; one JSON argument."""

    model: str
    backend: str
    device: str | None
    settings: dict[str, str]


class Marks(msgspec.Struct, frozen=True):
    """What the child measured."""

    load_s: float  # imports, weights, KV cache and warm-up
    first_token_s: float  # from the loaded model to the first token of a short prompt
    first_token_at_s: float  # on the host's monotonic clock, which parent and child share
    peak_rss_bytes: int


def bench_startup(given: argparse.Namespace) -> int:
    """The first run, with cold file caches, is not counted."""
    settings = parse_pairs(given.pairs)
    before = machine()
    model = find_demo_model() if given.model is None else local_model(given.model)
    order = Order(str(model), given.backend, given.device, settings)
    runs = [_one_run(order) for _ in range(given.repeats + 1)][1:]
    config = {"model": Path(order.model).name, "backend": order.backend, "settings": settings or None}
    report("startup", config, runs, before, given.json)
    return 0


def _one_run(order: Order) -> Figures:
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
    marks = msgspec.json.decode(child.stdout, type=Marks)
    return {
        "startup_s": marks.first_token_at_s - start,
        "load_s": marks.load_s,
        "first_token_s": marks.first_token_s,
        "peak_rss_bytes": marks.peak_rss_bytes,
    }


def _measure(order: Order) -> Marks:
    start = time.monotonic()
    from trivet.commands.bench.offline import peak_rss_bytes, run_batch
    from trivet.llm import LLM

    with LLM(order.model, backend=order.backend, device=order.device, **order.settings) as llm:
        loaded = time.monotonic()
        run_batch(llm.engine, [[1, 2, 3, 4]], 1, "startup")
        first_token = time.monotonic()
    return Marks(loaded - start, first_token - loaded, first_token, peak_rss_bytes())


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(_measure(msgspec.json.decode(sys.argv[1], type=Order))).decode())
