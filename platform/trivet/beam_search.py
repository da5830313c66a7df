"""Beam search over an offline engine, after vLLM's `LLM.beam_search`: the likeliest texts, not drawn ones.

Each round asks for one token of every beam of every prompt in one batch; the prefix cache keeps what the
beams have in common from being computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trivet.errors import RequestError
from trivet.outputs import RequestOutput
from trivet.sampling_params import MAX_LOGPROBS, SamplingParams
from trivet.text.tokenizer import Tokenizer

MAX_BEAM_WIDTH = MAX_LOGPROBS // 2  # each beam's twice as many likeliest tokens are looked at

Generate = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Names and defaults are vLLM's; `skip_special_tokens` as in `SamplingParams`."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0  # the sum of logprobs is divided by the length to this power
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False  # the end token is in the text, even if others are skipped
    temperature: float = 0.0  # changes nothing, as in vLLM: beams are weighed by the model's own logprobs

    def check(self) -> None:
        """Raises: RequestError."""
        if not 1 <= self.beam_width <= MAX_BEAM_WIDTH:
            raise RequestError(
                f"beam_width is {self.beam_width}; it must be between 1 and {MAX_BEAM_WIDTH}",
                param="beam_width",
            )
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1", param="max_tokens")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RequestError(
                f"temperature is {self.temperature}; it must be a number >= 0", param="temperature"
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """One text: the ids of prompt and completion, and what the completion's tokens have together."""

    tokens: list[int]
    cum_logprob: float = 0.0
    text: str = ""
    finish_reason: str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best texts of a prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beam_search(
    generate: Generate,
    tokenizer: Tokenizer,
    end_ids: Sequence[int],
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
) -> list[BeamSearchOutput]:
    """Args: generate: one token of each of several prompts; prompts: token ids.

    Raises: RequestError; what `generate` raises.
    """
    params.check()
    searches = [_Search(prompt, params, () if params.ignore_eos else end_ids) for prompt in prompts]
    wish = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=2 * params.beam_width)
    for _ in range(params.max_tokens):
        asked = [(search, beam) for search in searches for beam in search.beams]
        if not asked:
            break
        outputs = generate([beam.tokens for _, beam in asked], wish)
        for search in searches:
            mine = [(b, o) for (owner, b), o in zip(asked, outputs, strict=True) if owner is search]
            search.grow(mine)
    return [search.best(tokenizer) for search in searches]


class _Search:
    """The beams of one prompt."""

    def __init__(self, prompt: list[int], params: BeamSearchParams, end_ids: Sequence[int]) -> None:
        self._num_prompt = len(prompt)
        self._params = params
        self._end_ids = frozenset(end_ids)
        self._ended: list[BeamSearchSequence] = []
        self._shows_end = params.include_stop_str_in_output and params.skip_special_tokens
        self.beams = [BeamSearchSequence(prompt)]

    def grow(self, outputs: Sequence[tuple[BeamSearchSequence, RequestOutput]]) -> None:
        """Keep the likeliest of all beams' next tokens; those that end are kept apart."""
        grown = []
        for beam, output in outputs:
            (likely,) = output.outputs[0].logprobs or [{}]
            for token_id, entry in likely.items():
                total = beam.cum_logprob + entry.logprob
                new = BeamSearchSequence([*beam.tokens, token_id], total)
                if token_id in self._end_ids:
                    new.finish_reason = "stop"
                    self._ended.append(new)
                else:
                    grown.append(new)
        grown.sort(key=lambda one: one.cum_logprob, reverse=True)
        self.beams = grown[: self._params.beam_width]

    def best(self, tokenizer: Tokenizer) -> BeamSearchOutput:
        """The best of those that ended and those that `max_tokens` cut."""
        for beam in self.beams:
            beam.finish_reason = "length"
        found = sorted([*self._ended, *self.beams], key=self._score, reverse=True)
        found = found[: self._params.beam_width]
        for one in found:
            one.text = tokenizer.decode(one.tokens, self._params.skip_special_tokens)
            if self._shows_end and one.finish_reason == "stop":
                one.text += tokenizer.token_text(one.tokens[-1])
        return BeamSearchOutput(found)

    def _score(self, sequence: BeamSearchSequence) -> float:
        """Wu et al. 2016, section 7, with the plain power of the length; an end token is no length."""
        length = len(sequence.tokens) - self._num_prompt - (sequence.finish_reason == "stop")
        return sequence.cum_logprob / float(max(length, 1) ** self._params.length_penalty)
