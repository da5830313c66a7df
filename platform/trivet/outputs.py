"""What `LLM.generate` returns; names and shapes are those of vLLM's offline API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trivet.messages import TokenLogprob
from trivet.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from trivet.engine.commit import Update


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's raw logprob at one place, and how many tokens are as likely or more."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt. `logprobs` has the drawn token and the likeliest ones of each place."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and what came of it; grows in place while it is generated.

    `prompt_logprobs` has None for the first token, before which there is nothing.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    error: str | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    @property
    def num_sequences(self) -> int:
        return len(self.outputs)

    def grow(self, index: int, update: Update, tokenizer: Tokenizer) -> None:
        """Take in what a step brought the completion `index`."""
        completion = self.outputs[index]
        completion.text += update.text
        completion.token_ids.extend(update.token_ids)
        if update.logprobs is not None:
            completion.logprobs = [] if completion.logprobs is None else completion.logprobs
            completion.logprobs += [logprob_dict(entry, tokenizer) for entry in update.logprobs]
            added = sum(entry.logprob for entry in update.logprobs)
            completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + added
        if update.prompt_logprobs is not None and self.prompt_logprobs is None:
            self.prompt_logprobs = prompt_logprob_list(update.prompt_logprobs, tokenizer)
        if update.failure is not None:
            self.error = update.failure.message
        if update.finish_reason is not None:
            completion.finish_reason = str(update.finish_reason)
            completion.stop_reason = update.stop_reason
            self.finished = all(one.finish_reason is not None for one in self.outputs)
            if index == 0:  # the others find what this one computed
                self.num_cached_tokens = update.sequence.num_cached_tokens


@dataclass(slots=True)
class EmbeddingOutput:
    """A text's vector."""

    embedding: list[float] = field(default_factory=list)

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """A text and its vector."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput = field(default_factory=EmbeddingOutput)
    finished: bool = False
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def num_sequences(self) -> int:
        return 1

    def grow(self, index: int, update: Update, tokenizer: Tokenizer) -> None:
        """Take in the one update that there is."""
        if update.embedding is not None:
            self.outputs.embedding = update.embedding.tolist()
        if update.failure is not None:
            self.error = update.failure.message
        self.num_cached_tokens = update.sequence.num_cached_tokens
        self.finished = True


@dataclass(slots=True)
class ScoringOutput:
    """How well a document answers a query, 0 to 1; NaN where the sequence failed."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    """A pair of texts and its score."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: ScoringOutput
    finished: bool = True
    num_cached_tokens: int = 0
    error: str | None = None


def score_of(output: RequestOutput, yes_id: int, no_id: int) -> ScoringRequestOutput:
    """P(yes) where only yes and no can be said, from the two raw logprobs of the first drawn place."""
    score = math.nan
    places = output.outputs[0].logprobs
    if places:
        logprobs = {token_id: entry.logprob for token_id, entry in places[0].items()}
        score = yes_probability(logprobs, yes_id, no_id)
    return ScoringRequestOutput(
        output.request_id,
        output.prompt_token_ids,
        ScoringOutput(score),
        num_cached_tokens=output.num_cached_tokens,
        error=output.error,
    )


def yes_probability(logprobs: Mapping[int, float], yes_id: int, no_id: int) -> float:
    """P(yes) where only yes and no can be said, from the raw logprobs of both."""
    return 1 / (1 + math.exp(min(logprobs[no_id] - logprobs[yes_id], 700.0)))


def prompt_logprob_list(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> list[dict[int, Logprob] | None]:
    """One for each token of the prompt; `entries` begin with the second."""
    return [None, *(logprob_dict(entry, tokenizer) for entry in entries)]


def logprob_dict(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """The likeliest tokens by id, most likely first, and the token itself."""
    found = {
        token_id: Logprob(logprob, rank, tokenizer.token_text(token_id))
        for rank, (token_id, logprob) in enumerate(entry.top, start=1)
    }
    own = Logprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token_id))
    found.setdefault(entry.token_id, own)
    return found
