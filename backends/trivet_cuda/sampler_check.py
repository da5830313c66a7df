"""The device's sampler beside the contract's reference in NumPy, and its speed, for `trivet selftest cuda`.

Both as requests without penalties and grammars have it, and with edits and a mask of every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from trivet.contract import Sampling
from trivet.engine.sampler import sample_rows
from trivet.runners.warm_up import edited, warm_up_sampling, warm_up_step
from trivet.self_test import OpOutcome
from trivet_cuda import device_sampler
from trivet_cuda.device import Device
from trivet_cuda.self_test import guarded

ALLOWED = 1e-3  # of a logprob: a sum over the vocabulary in float32; tokens and ranks are equal


@dataclass(frozen=True, slots=True)
class Draws:
    """Rows of a decode step, over a vocabulary like Llama 3's."""

    num_rows: int = 32
    num_tokens: int = 128_256
    num_runs: int = 10


def run_sampler_check(device: Device, draws: Draws = Draws()) -> Iterator[OpOutcome]:
    """Raises: DeviceLost."""
    generator = np.random.default_rng(3)
    shape = (draws.num_rows, draws.num_tokens)
    logits = generator.normal(0, 3, shape).astype(np.float32).round(2)  # many are equal
    plain = replace(
        warm_up_sampling(*shape),
        temperature=np.linspace(0, 1.5, draws.num_rows).astype(np.float32),
        uniform=generator.random((draws.num_rows, 2), np.float32),
    )
    ways = (("every limit", plain), ("every limit, edits and masks", edited(plain, draws.num_tokens)))
    for way, sampling in ways:
        case = f"{draws.num_rows} rows of {draws.num_tokens}, {way}"
        outcomes = _outcomes(device, logits, sampling, case, draws.num_runs)
        yield from guarded(outcomes, ("draw",), case, torch.float32)


def _outcomes(
    device: Device, logits: NDArray[np.float32], sampling: Sampling, case: str, num_runs: int
) -> Iterator[OpOutcome]:
    where, rows = device.torch_device, len(logits)
    held, step = torch.from_numpy(logits).to(where), warm_up_step((1,) * rows, 16)
    with torch.inference_mode():
        drawn = device_sampler.draw([held], sampling, where)
        device.synchronise()
        found = drawn.output(step, sampling)
        began = device.mark()
        for _ in range(num_runs):
            device_sampler.draw([held], sampling, where)
        ended = device.mark()
        ended.wait()
    wanted = sample_rows(logits, sampling, step.row_seqs, rows)
    error = float(np.abs(found.logprobs - wanted.logprobs).max())
    is_same = np.array_equal(found.token_ids, wanted.token_ids) and np.array_equal(found.ranks, wanted.ranks)
    failure = "" if is_same else "other tokens or ranks than those of the reference"
    speed = {"draw_ms": 1e3 * ended.seconds_since(began) / num_runs}
    error = error if error == error else float("inf")
    yield OpOutcome(("draw",), case, "float32", error, ALLOWED, failure, speed)
