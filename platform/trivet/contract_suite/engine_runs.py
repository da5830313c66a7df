"""Runs requests through an engine core to their ends, with its books checked after every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trivet.engine.commit import Update
from trivet.engine.core import EngineCore
from trivet.engine.sequence import Sequence as EngineSequence
from trivet.messages import Failure, FinishReason, TokenLogprob
from trivet.pooling_params import PoolingParams
from trivet.sampling_params import SamplingParams

MAX_STEPS = 5_000  # far more than any case needs: a core that waits for ever ends here


@dataclass
class Outcome:
    """What came of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    failure: Failure | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None
    embedding: NDArray[np.float32] | None = None


def request(request_id: str, prompt: Sequence[int], params: SamplingParams) -> EngineSequence:
    """A request for token ids only."""
    return EngineSequence(request_id, list(prompt), params)


def embedding_request(request_id: str, prompt: Sequence[int], params: PoolingParams) -> EngineSequence:
    """A request for a vector."""
    return EngineSequence(request_id, list(prompt), SamplingParams(), pooling=params)


def greedy_request(request_id: str, prompt: Sequence[int], max_tokens: int) -> EngineSequence:
    """Greedy, to the very end."""
    return request(request_id, prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))


def run_core(core: EngineCore, requests: Iterable[EngineSequence]) -> dict[str, Outcome]:
    """Add all, then step until nothing is left."""
    outcomes: dict[str, Outcome] = {}
    for sequence in requests:
        core.add(sequence)
        outcomes[sequence.request_id] = Outcome()
    drain(core, outcomes)
    return outcomes


def drain(core: EngineCore, outcomes: dict[str, Outcome]) -> None:
    """Step until nothing is left. Raises: AssertionError where that takes for ever."""
    for _ in range(MAX_STEPS):
        if not core.has_work:
            return
        step_core(core, outcomes)
    raise AssertionError(f"the engine core still has work after {MAX_STEPS} steps: {core.load()}")


def step_core(core: EngineCore, outcomes: dict[str, Outcome]) -> list[Update]:
    """One step; its updates are added to the outcomes."""
    updates = core.step()
    core.block_pool.check_integrity()
    for update in updates:
        outcome = outcomes[update.sequence.request_id]
        assert outcome.finish_reason is None, f"request {update.sequence.request_id} went on after its end"
        outcome.token_ids += update.token_ids
        outcome.logprobs += update.logprobs or []
        outcome.finish_reason = update.finish_reason
        outcome.failure = update.failure
        outcome.embedding = update.embedding
        outcome.prompt_logprobs = update.prompt_logprobs or outcome.prompt_logprobs
    return updates
