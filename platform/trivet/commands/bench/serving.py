"""`trivet bench serve`: concurrent streams against a running server, as its clients feel it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trivet.commands.bench.report import machine, report
from trivet.commands.bench.timeline import Figures, Timeline, figures_of, random_prompt
from trivet.commands.chat import only_model
from trivet.commands.connecting import connect
from trivet.errors import GenerationError, TrivetError

if TYPE_CHECKING:
    from trivet.client import Client

# The server does not tell the size of its vocabulary; every model's is larger than this. Ids below are
# special tokens and single bytes.
FIRST_ID, LAST_ID = 300, 8000


def bench_serve(given: argparse.Namespace) -> int:
    """`concurrency` streams are kept open until all requests of a run are answered."""
    before = machine()
    with connect(given, max_connections=given.concurrency + 1) as client:
        model = given.name or only_model(client)
        # A server's prefix cache outlives this process: the clock keeps the prompts new.
        entropy = [given.seed, time.time_ns()]
        runs = [_one_run(client, model, given, [*entropy, run]) for run in range(given.repeats + 1)][1:]
        memory = _peak_rss_bytes(client, model)
    config = {
        "model": model,
        "url": given.url,
        "concurrency": given.concurrency,
        "prompt_tokens": given.prompt_tokens,
        "output_tokens": given.output_tokens,
        "num_prompts": given.num_prompts,
    }
    once = {} if memory is None else {"peak_rss_bytes": float(memory)}
    report("serve", config, [{**run, **once} for run in runs], before, given.json)
    return 0


def _one_run(client: Client, model: str, given: argparse.Namespace, entropy: Sequence[int]) -> Figures:
    rng = np.random.default_rng(entropy)
    prompts = [random_prompt(rng, given.prompt_tokens, FIRST_ID, LAST_ID) for _ in range(given.num_prompts)]
    with ThreadPoolExecutor(given.concurrency) as pool:
        answers = [pool.submit(stream_one, client, model, prompt, given.output_tokens) for prompt in prompts]
        return figures_of([answer.result() for answer in answers])


def stream_one(client: Client, model: str, prompt: Sequence[int], output_tokens: int) -> Timeline:
    """One streamed completion. Raises: TrivetError; GenerationError where it brings too few tokens."""
    timeline = Timeline(time.perf_counter(), len(prompt))
    usage = None
    for chunk in client.completions.stream(
        model, prompt, max_tokens=output_tokens, temperature=0, ignore_eos=True
    ):
        now = time.perf_counter()
        if chunk.choices and chunk.text:
            timeline.add(now, 1)
        usage = chunk.usage or usage
    if usage is None or not timeline.token_times_s:
        raise GenerationError("a stream brought no text or no usage; is it a Trivet server?")
    if usage.completion_tokens != output_tokens:
        raise GenerationError(f"a stream brought {usage.completion_tokens} tokens of {output_tokens}")
    # A chunk holds the tokens of a step, and an unfinished character waits: the server counts better.
    timeline.num_tokens = usage.completion_tokens
    return timeline


def _peak_rss_bytes(client: Client, model: str) -> int | None:
    """Of the deployment's engine processes, where they are on this host and may be asked for."""
    try:
        pids = [i.pid for i in client.instances.list(model) if i.state == "ready" and i.pid]
        peaks = [_high_water_mark(pid) for pid in pids]
    except (TrivetError, OSError, ValueError):
        return None
    return sum(peaks) if peaks else None


def _high_water_mark(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmHWM")
