"""Whether a runner computes the same model as a reference: teacher-forced, in numbers.

Ids alone cannot be compared outside float32: bfloat16 already differs in 2 % of the arg-maxes. So both
sides score the same given tokens, and they agree if no log-probability is off by more than a stated bound
and the first choice is the same wherever the reference prefers it by more than twice that bound. Float32
runners have to make the same first choice everywhere. The contract suite and the check of an instance
before READY use the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivet.contract import NO_TARGET, Batch, MemoryPlan, Runner, Sampling, StepOutput
from trivet.errors import DoesNotFit

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

# Natural-log units. Measured at most, torch on the CPU: f32 3e-5 and bf16 0.21 over 300 tokens of
# SmolLM2-135M, whose 30 layers each round to 8 bits; f16, with 11 bits, is an estimate.
BOUNDS = {"f32": 1e-3, "f16": 0.1, "bf16": 0.5}


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says about N given tokens, each after the tokens before it."""

    logprobs: Float32  # [N] of the given tokens
    top_ids: Int32  # [N] the most likely token
    margins: Float32  # [N] its logprob less that of the second

    @classmethod
    def of_logits(cls, logits: NDArray[np.floating], token_ids: Sequence[int]) -> Scores:
        """From the logits [T, V] after each of the tokens [T]; the last row scores nothing."""
        given = np.asarray(token_ids, np.int64)[1:, None]
        rows = logits[: len(given)].astype(np.float64)
        peak = rows.max(axis=-1, keepdims=True)
        logprobs = rows - peak - np.log(np.exp(rows - peak).sum(axis=-1, keepdims=True))
        best = np.partition(logprobs, -2, axis=-1)
        return cls(
            np.take_along_axis(logprobs, given, axis=-1)[:, 0].astype(np.float32),
            logprobs.argmax(axis=-1).astype(np.int32),
            (best[:, -1] - best[:, -2]).astype(np.float32),
        )

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        return cls(
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.margins for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outcome of a comparison, in numbers that an operator can read."""

    num_tokens: int
    bound: float
    max_error: float  # of a logprob; inf where it is not a number
    mean_error: float
    num_decided: int  # tokens whose first choice has to be the reference's
    num_different: int  # of those, how many are not
    num_top1_equal: int  # of all tokens

    @property
    def agrees(self) -> bool:
        return self.max_error <= self.bound and self.num_different == 0

    def __str__(self) -> str:
        return (
            f"{'agrees' if self.agrees else 'disagrees'} on {self.num_tokens} tokens: logprob error at most "
            f"{self.max_error:.2g}, on average {self.mean_error:.2g} (bound {self.bound:g}); first choice "
            f"equal on {self.num_top1_equal}, and wrong on {self.num_different} of the {self.num_decided} "
            "that are clear"
        )


def bound_of(dtype: str) -> float:
    """The stated bound of a runner's arithmetic; quantised weights count as their dequantised values."""
    return BOUNDS.get(dtype, BOUNDS["bf16"])


def compare(reference: Scores, measured: Scores, dtype: str) -> Agreement:
    """How far `measured`, computed in `dtype`, is from `reference` over the same tokens."""
    bound = bound_of(dtype)
    errors = np.abs(reference.logprobs.astype(np.float64) - measured.logprobs)
    errors[~np.isfinite(errors)] = np.inf
    is_clear = reference.margins > (0 if dtype == "f32" else 2 * bound)
    is_equal = reference.top_ids == measured.top_ids
    return Agreement(
        num_tokens=len(errors),
        bound=bound,
        max_error=float(errors.max(initial=0)),
        mean_error=float(errors.mean()) if len(errors) else 0.0,
        num_decided=int(is_clear.sum()),
        num_different=int((is_clear & ~is_equal).sum()),
        num_top1_equal=int(is_equal.sum()),
    )


def score_prompts(
    runner: Runner, plan: MemoryPlan, prompts: Sequence[Sequence[int]], *, first_step: int = 1
) -> Scores:
    """Score prompts of two tokens or more on an idle runner, one after the other, in chunks.

    Uses slot 0 and KV blocks 1, 2, 3 ...: nothing else may hold KV. Takes one step number a chunk, from
    `first_step` on.

    Raises: DoesNotFit where a prompt is longer than the plan allows.
    """
    parts = []
    for prompt in prompts:
        _check_fits(plan, len(prompt))
        chunk = plan.max_num_batched_tokens
        for start in range(0, len(prompt) - 1, chunk):
            batch, sampling = _chunk(plan, prompt, start, min(start + chunk, len(prompt)), first_step)
            runner.forward(batch)
            runner.sample(first_step, sampling)
            parts.append(_scores(runner.collect(first_step)))
            first_step += 1
    return Scores.join(parts)


def _check_fits(plan: MemoryPlan, num_tokens: int) -> None:
    room = min(plan.max_model_len, (min(plan.num_blocks) - 1) * plan.kv.block_size)
    if num_tokens > room:
        raise DoesNotFit(
            f"a prompt of {num_tokens} tokens cannot be scored: the plan holds {room}; "
            "score a shorter one or raise max_model_len"
        )


def _chunk(
    plan: MemoryPlan, prompt: Sequence[int], start: int, stop: int, step: int
) -> tuple[Batch, Sampling]:
    """Positions start ... stop - 1; each that has a next token is a row with that token as its target."""
    num_tokens, num_rows = stop - start, min(stop, len(prompt) - 1) - start
    blocks = np.arange(1, -(-stop // plan.kv.block_size) + 1, dtype=np.int32)[None]
    batch = Batch(
        step=step,
        slots=np.zeros(1, np.int32),
        query_start_loc=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([stop], np.int32),
        block_tables=tuple(blocks for _ in plan.num_blocks),
        token_ids=np.array(prompt[start:stop], np.int32),
        positions=np.arange(start, stop, dtype=np.int32),
        logits_rows=np.arange(num_rows, dtype=np.int32),
        row_seqs=np.zeros(num_rows, np.int32),
    )
    sampling = Sampling(
        draws=np.zeros(num_rows, np.bool_),
        target_ids=np.array(prompt[start + 1 : start + 1 + num_rows], np.int32),
        temperature=np.zeros(num_rows, np.float32),
        top_k=np.zeros(num_rows, np.int32),
        top_p=np.ones(num_rows, np.float32),
        min_p=np.zeros(num_rows, np.float32),
        uniform=np.zeros((num_rows, 2), np.float32),
        num_logprobs=2,
    )
    assert NO_TARGET not in sampling.target_ids
    return batch, sampling


def _scores(output: StepOutput) -> Scores:
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    margins = output.top_logprobs[:, 0] - output.top_logprobs[:, 1]
    return Scores(output.logprobs.copy(), output.top_ids[:, 0].copy(), margins)
