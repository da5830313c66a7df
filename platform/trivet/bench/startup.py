"""The child of `trivet bench startup`: loads a model in a new process and tells when each phase ended.

It does what an engine process does before it says READY, a first token included, in finer phases than an
engine process tells of itself.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

if TYPE_CHECKING:
    from trivet.engine.assembly import Engine

# Of /proc/PID/status, in KiB: what only this process has, and what it shares with files on disk.
RSS_FIELDS = {
    "VmRSS": "rss_bytes",
    "RssAnon": "rss_anonymous_bytes",
    "RssFile": "rss_file_bytes",
    "VmHWM": "peak_rss_bytes",
}


class Order(msgspec.Struct, frozen=True):
    """What the child loads; one JSON argument."""

    model: str
    backend: str
    device: str | None
    settings: dict[str, str]


class Mark(msgspec.Struct, frozen=True):
    """The end of a phase."""

    phase: str
    at_s: float  # on the host's monotonic clock, which parent and child share
    rss_bytes: int


class _Clock:
    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def end(self, phase: str) -> None:
        rss = psutil.Process().memory_info().rss
        self.marks.append(Mark(phase, time.monotonic(), rss))


def measure(order: Order) -> list[Mark]:
    """Phases: interpreter, imports, place, load (weights and KV cache), warm_up, first_token."""
    clock = _Clock()
    clock.end("interpreter")
    from trivet.engine.assembly import assemble
    from trivet.engine.placement import place
    from trivet.engine_settings import parse_engine_settings
    from trivet.models.model_files import open_model
    from trivet.plugins import load_plugins

    clock.end("imports")
    settings = parse_engine_settings(order.settings)
    host = load_plugins()
    files = open_model(order.model, host)
    placement = place(host, files, settings, order.backend, (order.device,) if order.device else ())
    clock.end("place")
    engine = assemble(files, placement, settings, on_warming=lambda: clock.end("load"))
    try:
        clock.end("warm_up")
        _generate_first_token(engine)
        clock.end("first_token")
        return clock.marks
    finally:
        engine.close()


def _generate_first_token(engine: Engine) -> None:
    from trivet.engine.sequence import Sequence
    from trivet.errors import GenerationError
    from trivet.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    engine.core.add(Sequence("startup", [1, 2, 3, 4], params))
    while engine.core.has_work:
        for update in engine.core.step():
            if update.failure is not None:
                raise GenerationError(f"the first token failed: {update.failure.message}")


def rss_parts(pid: int) -> dict[str, int]:
    """What of a process is resident, in bytes, by the names of `RSS_FIELDS`."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in RSS_FIELDS:
            found[RSS_FIELDS[name]] = int(value.split()[0]) * 1024
    return found


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure(msgspec.json.decode(sys.argv[1], type=Order))).decode())
