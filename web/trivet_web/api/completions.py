"""POST /v1/completions: a prompt as text or token ids, or a list of either; no chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from flask import Blueprint, Response
from msgspec import UNSET

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet_web.api.inference import (
    Completed,
    Exchange,
    Target,
    closing_on_error,
    find_target,
    read_whole,
    usage_of,
)
from trivet_web.api.logprobs import completion_logprobs
from trivet_web.api.openai_objects import Completion, CompletionChoice, CompletionLogprobs, Usage
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import UNSUPPORTED, Integer, SamplingFields, check_context
from trivet_web.json_response import json_response
from trivet_web.mailbox import Arrival
from trivet_web.sse import Chunks, stream_response
from trivet_web.web_process import web_process

blueprint = Blueprint("completions", __name__)
MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16  # OpenAI's

_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {**UNSUPPORTED, "echo": (False,), "suffix": ("",)}


class CompletionRequest(SamplingFields, kw_only=True):
    """What is read of the body. msgspec tells no list from another, so items are sorted out here."""

    prompt: str | list[str | Integer | list[Integer]]
    logprobs: Integer | None = None

    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself. Raises: RequestError naming the item that is wrong."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        items = self.prompt
        if not items:
            raise RequestError("prompt is an empty list; send at least one prompt", param="prompt")
        kinds = {type(item) for item in items}
        if len(kinds) > 1:
            raise RequestError("prompt mixes texts, token ids and lists; send one kind", param="prompt")
        if kinds == {int}:
            return [[item for item in items if isinstance(item, int)]]
        if len(items) > MAX_PROMPTS:
            raise RequestError(
                f"prompt has {len(items)} items; at most {MAX_PROMPTS} are read", param="prompt"
            )
        return [item for item in items if not isinstance(item, int)]

    @property
    def num_logprobs(self) -> int | None:
        """Raises: RequestError."""
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise RequestError(f"logprobs is {self.logprobs}; it must be between 0 and 20", param="logprobs")
        return self.logprobs


@blueprint.post("/v1/completions")
def create() -> Response:
    """One answer to each prompt, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(CompletionRequest)
    refuse_unsupported(_UNSUPPORTED)
    body.check()
    prompts = body.prompts()
    target = find_target(body.model)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = body.sampling_params(target.model.sampling_defaults, max_tokens, body.num_logprobs)
    with closing_on_error(Exchange(target, "cmpl")) as exchange:
        token_ids = _token_ids(target, prompts)
        for ids in token_ids:
            check_context(len(ids), params.max_tokens, target.max_model_len, "prompt")
        exchange.start(token_ids, params, body)
        if body.stream:
            chunks = CompletionChunks(exchange, params, len(token_ids), wants_usage=body.wants_usage)
            return stream_response(exchange.answer, chunks, exchange.close)
        done = read_whole(exchange.answer, len(token_ids))
        exchange.close()
        return json_response(_completion(exchange, done, params))


def _token_ids(target: Target, prompts: list[str | list[int]]) -> list[list[int]]:
    """Raises: RequestError for a prompt without tokens, or with an id that the model does not have.

    ContextLengthExceeded or RequestTooLarge for texts that are too long to be looked at.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(
        web_process().prompts.encode(
            target.model, texts, target.max_model_len, "prompt", add_special_tokens=True
        )
    )
    all_ids = [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
    for index, ids in enumerate(all_ids):
        path = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
        if not ids:
            raise RequestError(f"{path} has no tokens; send at least one", param=path)
        wrong = [one for one in (min(ids), max(ids)) if not 0 <= one < target.model.num_tokens]
        if wrong:
            raise RequestError(
                f"{path} holds token id {wrong[0]}; ids go from 0 to {target.model.num_tokens - 1}",
                param=path,
            )
    return all_ids


def _completion(exchange: Exchange, done: list[Completed], params: SamplingParams) -> Completion:
    tokenizer, top = exchange.target.model.tokenizer, params.logprobs
    choices = [
        CompletionChoice(
            index,
            one.text,
            None if top is None else completion_logprobs(one.logprobs, tokenizer, top, 0)[0],
            one.finish_reason,
            UNSET if one.stop_reason is None else one.stop_reason,
        )
        for index, one in enumerate(done)
    ]
    return Completion(exchange.id, exchange.created, exchange.target.deployed.name, choices, usage_of(done))


class CompletionChunks(Chunks):
    """One chunk for each choice that something came for."""

    def __init__(self, exchange: Exchange, params: SamplingParams, count: int, *, wants_usage: bool) -> None:
        self._exchange = exchange
        self._top = params.logprobs
        self._wants_usage = wants_usage
        self._counts = [Completed() for _ in range(count)]
        self._offsets = [0] * count

    def of(self, arrivals: list[Arrival]) -> Iterable[Completion]:
        by_choice: dict[int, Completed] = {}
        for arrival in arrivals:
            by_choice.setdefault(arrival.choice, Completed()).add(arrival)
        for index, joined in by_choice.items():
            self._counts[index] = joined
            logprobs = self._logprobs(index, joined)
            if joined.text or logprobs is not None or joined.finish_reason:
                choice = CompletionChoice(
                    index,
                    joined.text,
                    logprobs,
                    joined.finish_reason or None,
                    UNSET if joined.stop_reason is None else joined.stop_reason,
                )
                yield self._chunk([choice], None)

    def last(self) -> Iterable[msgspec.Struct]:
        if self._wants_usage:
            yield self._chunk([], usage_of(self._counts))

    def _logprobs(self, index: int, joined: Completed) -> CompletionLogprobs | None:
        if self._top is None or not joined.logprobs:
            return None
        logprobs, self._offsets[index] = completion_logprobs(
            joined.logprobs, self._exchange.target.model.tokenizer, self._top, self._offsets[index]
        )
        return logprobs

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        exchange = self._exchange
        name = exchange.target.deployed.name
        return Completion(exchange.id, exchange.created, name, choices, usage if self._wants_usage else UNSET)
