"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from flask import Blueprint, Response
from msgspec import UNSET, UnsetType

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet.text.tool_calls.events import Content, Event, Reasoning
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.chunk_template import ChunkTemplate
from trivet_web.answers.sse import Chunks, stream_response
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.chat_prompt import ChatPromptFields, Prompt
from trivet_web.api.chat_reader import ChatReader
from trivet_web.api.conversation import for_template
from trivet_web.api.documented import documented
from trivet_web.api.inference import Exchange, closing_on_error, find_target
from trivet_web.api.logprobs import chat_logprobs, prompt_logprobs
from trivet_web.api.openai_objects import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    Usage,
)
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import UNSUPPORTED, Integer, UsageInStream, check_context, public_id
from trivet_web.api.truncation import truncation_of
from trivet_web.api.whole_answer import Completed, usage_of, whole_response
from trivet_web.engines.mailbox import Arrival
from trivet_web.json_response import json_response

blueprint = Blueprint("chat", __name__)
MAX_TOP_LOGPROBS = 20
_TEXTS = (Content, Reasoning)  # `Content | Reasoning` would make a type for each token

CHAT_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    **UNSUPPORTED,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "moderation": (),
    "echo": (False,),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "thinking_token_budget": (),
}


class ChatRequest(ChatPromptFields, kw_only=True):
    """What is read of the body."""

    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    include_reasoning: bool | None = None

    def check(self) -> None:
        """Raises: RequestError; the field that was sent is named, not the one that it stands for."""
        super().check()
        self.check_prompt()
        for name in ("max_tokens", "max_completion_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name} is {value}; it must be an integer >= 1", param=name)

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
@requires(Right.INFER)
@documented(ChatCompletion, body=ChatRequest, stream=ChatChunk)
def create() -> Response:
    """One answer of the model, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(ChatRequest)
    refuse_unsupported(CHAT_UNSUPPORTED)
    with begun(body, "chatcmpl") as answer:
        if body.stream:
            return stream_response(answer.exchange, ChatChunks(answer, body.usage_in_stream))
        return whole_response(
            answer.exchange, lambda done: json_response(answer.completion(done, body.prompt_logprobs))
        )


@contextmanager
def begun(body: ChatRequest, kind: str) -> Iterator[ChatAnswer]:
    """Check the request and send it to an engine; what fails in the block ends it.

    Raises: RequestError, Unavailable.
    """
    body.check()
    messages, tools = for_template(body.messages), body.tool_use()
    truncation = truncation_of(body.truncate_prompt_tokens, body.completion_limit)
    target = find_target(body.model_name)
    params = body.sampling_params(target.model.sampling_defaults, body.completion_limit, body.num_logprobs)
    form = AnswerForm.of(target, tools)
    with closing_on_error(Exchange(target, kind, is_streamed=bool(body.stream))) as exchange:
        exchange.public_id = public_id(kind, body.request_id, exchange.id)
        text = body.render(target, *form.prompt_messages(messages))
        params = form.params(params, text)
        prompt = body.encode(target, text, truncation)
        check_context(len(prompt.token_ids), params.max_tokens, target.max_model_len, "messages")
        exchange.start([prompt.token_ids], params, body)
        yield ChatAnswer(exchange, params, prompt, form, shows_reasoning=body.include_reasoning is not False)


class ChatAnswer:
    """The completions of one request, each with its reader."""

    def __init__(
        self,
        exchange: Exchange,
        params: SamplingParams,
        prompt: Prompt,
        form: AnswerForm,
        *,
        shows_reasoning: bool,
    ) -> None:
        self.exchange = exchange
        self.params = params
        self.form = form
        self.readers = [
            ChatReader(form, prompt.text, params, shows_reasoning=shows_reasoning) for _ in range(params.n)
        ]
        self._prompt = prompt

    def completion(self, done: list[Completed], prompt_top: int | None) -> ChatCompletion:
        """The whole answer."""
        of_prompt, tokenizer = done[0].prompt_logprobs, self.exchange.target.model.tokenizer
        choices = [self._choice(index, one) for index, one in enumerate(done)]
        return ChatCompletion(
            self.exchange.public_id,
            self.exchange.created,
            self.exchange.target.id,
            choices,
            self.usage(done),
            UNSET
            if prompt_top is None or of_prompt is None
            else prompt_logprobs(of_prompt, tokenizer, prompt_top),
        )

    def _choice(self, index: int, done: Completed) -> ChatChoice:
        reader = self.readers[index]
        message = reader.message(done)
        reason = reader.finish_reason(done.finish_reason)
        return ChatChoice(index, message, reason, done.stop_reason, self.logprobs(done, is_whole=True))

    def logprobs(self, piece: Completed, *, is_whole: bool = False) -> ChatLogprobs | None:
        """Of a piece; None where none are asked for, or there are none yet."""
        top = self.params.logprobs
        if top is None or not (piece.logprobs or is_whole):
            return None
        return chat_logprobs(piece.logprobs, self.exchange.target.model.tokenizer, top)

    def usage(self, done: list[Completed]) -> Usage:
        """Of all completions."""
        num_reasoning = sum(reader.reasoning_tokens for reader in self.readers)
        return usage_of(
            done,
            self.exchange.num_completions,
            num_reasoning if self.form.has_reasoning else None,
            self._prompt.num_truncated,
        )


class ChatChunks(Chunks):
    """The role comes with the first piece, what it brings as it comes, the reason with the last."""

    __slots__ = ("_answer", "_counts", "_is_plain", "_plain", "_templates", "_usage")

    def __init__(self, answer: ChatAnswer, usage: UsageInStream) -> None:
        self._answer = answer
        self._usage = usage
        self._counts: list[Completed | None] = [None] * len(answer.readers)
        self._is_plain = answer.params.logprobs is None and usage is not UsageInStream.ALWAYS
        self._templates: dict[tuple[int, type[Event]], ChunkTemplate] = {}
        self._plain: dict[int, ChunkTemplate] = {}  # of choices that have begun and are all content

    def encoded(self, arrivals: list[Arrival]) -> bytes:
        if len(arrivals) == 1:  # nearly always, and one call for another costs as much as the rest
            (arrival,) = arrivals
            template, piece = self._plain.get(arrival.choice), arrival.piece
            if template is not None and piece.finish_reason is None:
                return template.of(piece.text) if piece.text else b""
        if not self._is_plain or len(arrivals) > len(self._counts):
            return super().encoded(arrivals)
        if len(arrivals) == 1:
            (arrival,) = arrivals
            return self._of_usual(arrival) if self._is_usual(arrival) else super().encoded(arrivals)
        is_one_each = len({arrival.choice for arrival in arrivals}) == len(arrivals)
        if is_one_each and all(map(self._is_usual, arrivals)):
            return b"".join(map(self._of_usual, arrivals))
        return super().encoded(arrivals)

    def _is_usual(self, arrival: Arrival) -> bool:
        """Between the first and the last of its choice: it brings text, or what its reader makes of it."""
        return arrival.piece.finish_reason is None and self._counts[arrival.choice] is not None

    def _of_usual(self, arrival: Arrival) -> bytes:
        index, piece = arrival.choice, arrival.piece
        reader, data = self._answer.readers[index], b""
        if reader.is_plain:
            self._plain[index] = template = self._template(index, Content)
            return template.of(piece.text) if piece.text else b""
        for event in reader.events(piece):
            if isinstance(event, _TEXTS):
                data += self._template(index, type(event)).of(event.text)
            elif (delta := reader.delta(event)) is not None:
                data += self._encoded(index, delta)
        return data

    def _template(self, index: int, kind: type[Content | Reasoning]) -> ChunkTemplate:
        template = self._templates.get((index, kind))
        if template is None:
            reader = self._answer.readers[index]
            template = ChunkTemplate(lambda text: self._encoded(index, reader.delta(kind(text))))
            self._templates[index, kind] = template
        return template

    def _encoded(self, index: int, delta: ChatDelta | None) -> bytes:
        return b"" if delta is None else self.event(self._chunk(ChatChunkChoice(index, delta)))

    def of(self, arrivals: list[Arrival]) -> Iterable[ChatChunk]:
        by_choice: dict[int, Completed] = {}
        for arrival in arrivals:
            by_choice.setdefault(arrival.choice, Completed()).add(arrival)
        for index, joined in by_choice.items():
            yield from self._chunks_of(index, joined)

    def _chunks_of(self, index: int, joined: Completed) -> Iterable[ChatChunk]:
        is_first, self._counts[index] = self._counts[index] is None, joined
        if is_first:
            yield self._chunk(ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
        reader, logprobs = self._answer.readers[index], self._answer.logprobs(joined)
        deltas = [delta for event in reader.events(joined) if (delta := reader.delta(event)) is not None]
        if logprobs is not None and not deltas:
            deltas = [ChatDelta(content="")]
        for delta in deltas:
            yield self._chunk(ChatChunkChoice(index, delta, logprobs))
            logprobs = None
        if joined.finish_reason:
            reason = reader.finish_reason(joined.finish_reason)
            stop_reason = UNSET if joined.stop_reason is None else joined.stop_reason
            yield self._chunk(
                ChatChunkChoice(index, ChatDelta(), finish_reason=reason, stop_reason=stop_reason)
            )

    def last(self) -> Iterable[msgspec.Struct]:
        if self._usage is not UsageInStream.NONE:
            yield self._of([], self._usage_so_far())

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        if self._usage is UsageInStream.ALWAYS:
            return self._of([choice], self._usage_so_far())
        return self._of([choice], UNSET if self._usage is UsageInStream.NONE else None)

    def _usage_so_far(self) -> Usage:
        return self._answer.usage([one or Completed() for one in self._counts])

    def _of(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        exchange = self._answer.exchange
        return ChatChunk(exchange.public_id, exchange.created, exchange.target.id, choices, usage)
