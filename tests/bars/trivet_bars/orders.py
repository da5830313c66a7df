"""An engine's runner: a process that loads the engine once and then carries out one order a line.

    {"prompts": [[5, 6], [7, 8]], "output_tokens": 2, "temperature": 0, "top_p": 1}
    → {"times_s": [[0.08, 0.09], [0.08, 0.09]], "num_tokens": [[1, 1], [1, 1]]}

The first line that it prints says what it is: versions and settings. It only tells when tokens came; the
figures are made of that in one place, by `trivet.bench`, for every engine alike. Loaded once, an engine can
take its turn in every round. Standard library only: it runs in the engine's own environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Order:
    """Prompts that arrive together, and how each is answered: end tokens are ignored."""

    prompts: list[list[int]]
    output_tokens: int
    temperature: float = 0.0  # 0: always the likeliest token
    top_p: float = 1.0


@dataclass(slots=True)
class Arrivals:
    """When tokens of one request came, in seconds of `time.perf_counter`."""

    times_s: list[float] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)  # at each of these times

    def add(self, at_s: float, num_tokens: int = 1) -> None:
        if num_tokens:
            self.times_s.append(at_s)
            self.num_tokens.append(num_tokens)


class InProcess(Protocol):
    """An engine that is loaded in this process."""

    def generate(self, order: Order) -> Sequence[Arrivals]:
        """Answer all prompts of an order; one result a prompt, in their order."""


def take_orders(
    load: Callable[[], InProcess], packages: Sequence[str], settings: Mapping[str, object]
) -> None:
    """Load the engine, say so, and carry out orders until the input ends.

    Args:
        packages: distributions whose versions are told.
        settings: what was chosen, for the report.
    """
    # Libraries print to standard output: they get standard error, and the answers get the real one.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = load()
    answers.write(json.dumps({"versions": versions(packages), "settings": dict(settings)}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_carry_out(engine, Order(**json.loads(line)))) + "\n")


def _carry_out(engine: InProcess, order: Order) -> dict[str, object]:
    start_s = time.perf_counter()
    try:
        requests = engine.generate(order)
    except (ValueError, RuntimeError) as error:  # the next order may be possible
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "times_s": [[at_s - start_s for at_s in request.times_s] for request in requests],
        "num_tokens": [request.num_tokens for request in requests],
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Of this interpreter and of installed distributions."""
    found = {"python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
