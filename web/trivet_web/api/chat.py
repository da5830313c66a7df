"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from flask import Blueprint, Response
from msgspec import UNSET

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet_web.api.conversation import Message, for_template
from trivet_web.api.inference import (
    Completed,
    Exchange,
    Target,
    closing_on_error,
    find_target,
    read_whole,
    usage_of,
)
from trivet_web.api.logprobs import chat_logprobs, prompt_logprobs
from trivet_web.api.openai_objects import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
)
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import UNSUPPORTED, Integer, SamplingFields, check_context
from trivet_web.json_response import json_response
from trivet_web.mailbox import Arrival
from trivet_web.sse import Chunks, stream_response
from trivet_web.web_process import web_process

blueprint = Blueprint("chat", __name__)
MAX_TOP_LOGPROBS = 20

_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    **UNSUPPORTED,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),  # templates come with the model's files only
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "echo": (False,),
}


class ChatRequest(SamplingFields, kw_only=True):
    """What is read of the body."""

    messages: list[Message]
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises: RequestError; the field that was sent is named, not the one that it stands for."""
        super().check()
        if self.max_completion_tokens is not None and self.max_completion_tokens < 0:
            raise RequestError(
                f"max_completion_tokens is {self.max_completion_tokens}; it must be an integer >= 0",
                param="max_completion_tokens",
            )

    @property
    def completion_limit(self) -> int | None:
        """None: up to the end of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Raises: RequestError."""
        top = self.top_logprobs or 0
        if not 0 <= top <= MAX_TOP_LOGPROBS:
            raise RequestError(
                f"top_logprobs is {top}; it must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs"
            )
        if top and not self.logprobs:
            raise RequestError("top_logprobs is given without logprobs; set logprobs true", param="logprobs")
        return top if self.logprobs else None


@blueprint.post("/v1/chat/completions")
def create() -> Response:
    """One answer of the model, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(ChatRequest)
    refuse_unsupported(_UNSUPPORTED)
    body.check()
    messages = for_template(body.messages)
    target = find_target(body.model)
    params = body.sampling_params(target.model.sampling_defaults, body.completion_limit, body.num_logprobs)
    with closing_on_error(Exchange(target, "chatcmpl", is_streamed=bool(body.stream))) as exchange:
        prompt = _prompt(target, messages, body.chat_template_kwargs or {})
        check_context(len(prompt), params.max_tokens, target.max_model_len, "messages")
        exchange.start([prompt], params, body)
        if body.stream:
            chunks = ChatChunks(exchange, params, wants_usage=body.wants_usage)
            return stream_response(exchange, chunks)
        done = read_whole(exchange)
        exchange.close()
        return json_response(_completion(exchange, done, params, body.prompt_logprobs))


def _prompt(target: Target, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> list[int]:
    """Raises: RequestError in the template's own words; ContextLengthExceeded."""
    template = target.model.require_template(target.deployed.name)
    text = template.render(messages, **kwargs)
    # The template writes the begin token where the model wants one.
    (ids,) = web_process().prompts.encode(
        target.model, [text], target.max_model_len, "messages", add_special_tokens=False
    )
    return ids


def _completion(
    exchange: Exchange, done: list[Completed], params: SamplingParams, prompt_top: int | None
) -> ChatCompletion:
    tokenizer, top = exchange.target.model.tokenizer, params.logprobs
    choices = [
        ChatChoice(
            index,
            ChatMessage(one.text),
            one.finish_reason,
            one.stop_reason,
            None if top is None else chat_logprobs(one.logprobs, tokenizer, top),
        )
        for index, one in enumerate(done)
    ]
    of_prompt = done[0].prompt_logprobs
    return ChatCompletion(
        exchange.id,
        exchange.created,
        exchange.target.deployed.name,
        choices,
        usage_of(done, params.n),
        UNSET
        if prompt_top is None or of_prompt is None
        else prompt_logprobs(of_prompt, tokenizer, prompt_top),
    )


class ChatChunks(Chunks):
    """The role comes with the first piece, each text as it comes, the reason with the last."""

    def __init__(self, exchange: Exchange, params: SamplingParams, *, wants_usage: bool) -> None:
        self._exchange = exchange
        self._top = params.logprobs
        self._wants_usage = wants_usage
        self._counts: list[Completed | None] = [None] * params.n

    def of(self, arrivals: list[Arrival]) -> Iterable[ChatChunk]:
        by_choice: dict[int, Completed] = {}
        for arrival in arrivals:
            by_choice.setdefault(arrival.choice, Completed()).add(arrival)
        for index, joined in by_choice.items():
            yield from self._chunks_of(index, joined)

    def _chunks_of(self, index: int, joined: Completed) -> Iterable[ChatChunk]:
        if self._counts[index] is None:
            yield self._chunk(ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
        self._counts[index] = joined
        logprobs = None
        if self._top is not None and joined.logprobs:
            logprobs = chat_logprobs(joined.logprobs, self._exchange.target.model.tokenizer, self._top)
        if joined.text or logprobs is not None:
            yield self._chunk(ChatChunkChoice(index, ChatDelta(content=joined.text), logprobs))
        if joined.finish_reason:
            reason = joined.finish_reason
            stop_reason = UNSET if joined.stop_reason is None else joined.stop_reason
            yield self._chunk(
                ChatChunkChoice(index, ChatDelta(), finish_reason=reason, stop_reason=stop_reason)
            )

    def last(self) -> Iterable[msgspec.Struct]:
        if self._wants_usage:
            exchange = self._exchange
            name = exchange.target.deployed.name
            counts = [one or Completed() for one in self._counts]
            usage = usage_of(counts, exchange.num_completions)
            yield ChatChunk(exchange.id, exchange.created, name, [], usage)

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        exchange = self._exchange
        name = exchange.target.deployed.name
        return ChatChunk(exchange.id, exchange.created, name, [choice], None if self._wants_usage else UNSET)
