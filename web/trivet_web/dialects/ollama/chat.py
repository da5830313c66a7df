"""POST /api/chat."""

from __future__ import annotations

from collections.abc import Iterable

from flask import Blueprint, Response

from trivet.errors import RequestError
from trivet.text.answer_parser import AnswerParts
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.sse import stream_response
from trivet_web.api.chat import ChatAnswer, begun
from trivet_web.api.documented import documented
from trivet_web.api.inference import Target
from trivet_web.api.openai_objects import TokenLogprob
from trivet_web.api.request_body import read_body
from trivet_web.api.whole_answer import Completed, whole_response
from trivet_web.dialects.ollama.lines import CallBuffer, Lines, called, ending, now, unless_empty
from trivet_web.dialects.ollama.loading import loaded
from trivet_web.dialects.ollama.names import named
from trivet_web.dialects.ollama.objects import (
    AnswerMessage,
    ChatAnswerObject,
    OllamaError,
    ToolCallObject,
)
from trivet_web.dialects.ollama.options import NAMES
from trivet_web.dialects.ollama.requests import GenerationFields, OllamaChatRequest
from trivet_web.field_names import name_fields
from trivet_web.json_response import NDJSON, json_response

blueprint = Blueprint("ollama_chat", __name__)


@blueprint.post("/api/chat")
@requires(Right.INFER)
@documented(
    ChatAnswerObject,
    body=OllamaChatRequest,
    stream=ChatAnswerObject,
    stream_media_type=NDJSON,
    failed=OllamaError,
)
def create() -> Response:
    """One answer of the model, streamed unless `stream` is false. Raises: RequestError, Unavailable."""
    body = read_body(OllamaChatRequest)
    wanted = named(body.model)
    if not body.messages:
        loaded(wanted, body.keep_alive)
        return json_response(
            ChatAnswerObject(
                model=wanted.asked, created_at=now(), message=AnswerMessage(), done=True, done_reason="load"
            )
        )
    name_fields(NAMES)
    with begun(body.completion(wanted), "chat") as answer:
        check_thinking(body, answer.exchange.target)
        if body.is_streamed:
            return stream_response(answer.exchange, ChatLines(answer, wanted.asked))
        return whole_response(answer.exchange, lambda done: _whole(answer, wanted.asked, done[0]))


def _whole(answer: ChatAnswer, model: str, done: Completed) -> Response:
    return json_response(
        ChatAnswerObject(
            model=model,
            created_at=now(),
            message=whole_message(answer, done),
            logprobs=logprobs_of(answer, done),
            **ending(answer.exchange, done.first_s, done),
        )
    )


class ChatLines(Lines):
    """Content and thinking as they come, calls when they are whole."""

    def __init__(self, answer: ChatAnswer, model: str) -> None:
        self._answer = answer
        self._model = model
        self._calls = CallBuffer()
        self._first_s = 0.0

    def lines(self, joined: Completed) -> Iterable[ChatAnswerObject]:
        self._first_s = self._first_s or joined.first_s
        events = self._answer.readers[0].events(joined)
        content, thought, calls = self._calls.read(events, is_last=bool(joined.finish_reason))
        logprobs = logprobs_of(self._answer, joined)
        if content or thought or calls or logprobs:
            message = AnswerMessage(
                content=content, thinking=unless_empty(thought), tool_calls=unless_empty(calls)
            )
            yield self._line(message, logprobs=logprobs)
        if joined.finish_reason:
            yield self._line(AnswerMessage(), **ending(self._answer.exchange, self._first_s, joined))

    def _line(self, message: AnswerMessage, **fields: object) -> ChatAnswerObject:
        return ChatAnswerObject(model=self._model, created_at=now(), message=message, **fields)  # type: ignore[arg-type]


def whole_message(answer: ChatAnswer, done: Completed) -> AnswerMessage:
    """Of a completion that is over."""
    parts = AnswerParts()
    parts.add(answer.readers[0].events(done))
    calls: list[ToolCallObject] = [
        called(call.name, call.arguments, index) for index, call in enumerate(parts.calls)
    ]
    return AnswerMessage(
        content=parts.content, thinking=unless_empty(parts.reasoning), tool_calls=unless_empty(calls)
    )


def logprobs_of(answer: ChatAnswer, piece: Completed) -> list[TokenLogprob]:
    """Unset where none are asked for."""
    found = answer.logprobs(piece)
    logprobs: list[TokenLogprob] = unless_empty(found and found.content)
    return logprobs


def check_thinking(body: GenerationFields, target: Target) -> None:
    """Raises: RequestError."""
    if body.wants_thinking and target.reasoning_format is None:
        raise RequestError(
            f"think is {body.think!r} and model {target.deployed.name!r} does not think; leave it out",
            param="think",
        )
