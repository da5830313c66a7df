"""POST /api/generate: a prompt in the model's template, or with `raw` as it is."""

from __future__ import annotations

from collections.abc import Iterable

from flask import Blueprint, Response

from trivet.text.answer_parser import AnswerParts
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.sse import stream_response
from trivet_web.api import completions
from trivet_web.api.chat import ChatAnswer, begun
from trivet_web.api.documented import documented
from trivet_web.api.inference import Exchange
from trivet_web.api.logprobs import chat_logprobs
from trivet_web.api.openai_objects import TokenLogprob
from trivet_web.api.request_body import read_body
from trivet_web.api.whole_answer import Completed, whole_response
from trivet_web.dialects.ollama.chat import check_thinking, logprobs_of
from trivet_web.dialects.ollama.lines import Lines, ending, now, unless_empty
from trivet_web.dialects.ollama.loading import loaded
from trivet_web.dialects.ollama.names import Named, named
from trivet_web.dialects.ollama.objects import GenerateAnswerObject, OllamaError
from trivet_web.dialects.ollama.options import NAMES
from trivet_web.dialects.ollama.requests import OllamaGenerateRequest
from trivet_web.field_names import name_fields
from trivet_web.json_response import NDJSON, json_response

blueprint = Blueprint("ollama_generate", __name__)


@blueprint.post("/api/generate")
@requires(Right.INFER)
@documented(
    GenerateAnswerObject,
    body=OllamaGenerateRequest,
    stream=GenerateAnswerObject,
    stream_media_type=NDJSON,
    failed=OllamaError,
)
def create() -> Response:
    """One answer of the model, streamed unless `stream` is false. Raises: RequestError, Unavailable."""
    body = read_body(OllamaGenerateRequest)
    body.check()
    wanted = named(body.model)
    if not body.prompt:
        loaded(wanted, body.keep_alive)
        return json_response(
            GenerateAnswerObject(
                model=wanted.asked, created_at=now(), response="", done=True, done_reason="load"
            )
        )
    name_fields(NAMES)
    if body.raw:
        return _raw(body, wanted)
    with begun(body.completion(wanted), "gen") as answer:
        check_thinking(body, answer.exchange.target)
        if body.is_streamed:
            return stream_response(answer.exchange, GenerateLines(TemplateText(answer), wanted.asked))
        text = TemplateText(answer)
        return whole_response(answer.exchange, lambda done: _whole(text, wanted.asked, done[0]))


def _raw(body: OllamaGenerateRequest, wanted: Named) -> Response:
    with completions.begun(body.raw_completion(wanted), "gen") as (exchange, form):
        text = RawText(exchange, form.params.logprobs)
        if body.is_streamed:
            return stream_response(exchange, GenerateLines(text, wanted.asked))
        return whole_response(exchange, lambda done: _whole(text, wanted.asked, done[0]))


class TemplateText:
    """What a piece of an answer says, and what of it is thinking."""

    def __init__(self, answer: ChatAnswer) -> None:
        self.exchange = answer.exchange
        self._answer = answer

    def read(self, piece: Completed) -> tuple[str, str]:
        parts = AnswerParts()
        parts.add(self._answer.readers[0].events(piece))
        return parts.content, parts.reasoning

    def logprobs(self, piece: Completed) -> list[TokenLogprob]:
        return logprobs_of(self._answer, piece)


class RawText(TemplateText):
    """The same, of a prompt as it is: nothing is taken for thinking."""

    def __init__(self, exchange: Exchange, top: int | None) -> None:
        self.exchange = exchange
        self._top = top

    def read(self, piece: Completed) -> tuple[str, str]:
        return piece.text, ""

    def logprobs(self, piece: Completed) -> list[TokenLogprob]:
        if self._top is None:
            logprobs: list[TokenLogprob] = unless_empty(None)
            return logprobs
        return chat_logprobs(piece.logprobs, self.exchange.target.model.tokenizer, self._top).content


class GenerateLines(Lines):
    """Text as it comes."""

    def __init__(self, text: TemplateText, model: str) -> None:
        self._text = text
        self._model = model
        self._first_s = 0.0

    def lines(self, joined: Completed) -> Iterable[GenerateAnswerObject]:
        self._first_s = self._first_s or joined.first_s
        content, thought = self._text.read(joined)
        logprobs = self._text.logprobs(joined)
        if content or thought or logprobs:
            yield self._line(response=content, thinking=unless_empty(thought), logprobs=logprobs)
        if joined.finish_reason:
            yield self._line(response="", **ending(self._text.exchange, self._first_s, joined))

    def _line(self, **fields: object) -> GenerateAnswerObject:
        return GenerateAnswerObject(model=self._model, created_at=now(), **fields)  # type: ignore[arg-type]


def _whole(text: TemplateText, model: str, done: Completed) -> Response:
    content, thought = text.read(done)
    return json_response(
        GenerateAnswerObject(
            model=model,
            created_at=now(),
            response=content,
            thinking=unless_empty(thought),
            logprobs=text.logprobs(done),
            **ending(text.exchange, done.first_s, done),
        )
    )
