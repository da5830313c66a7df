"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from trivet.errors import RequestError
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.sse import stream_response
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.chat import begun
from trivet_web.api.conversation import for_template
from trivet_web.api.documented import documented
from trivet_web.api.inference import Target
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.tokenization import target_of
from trivet_web.api.whole_answer import whole_response
from trivet_web.dialects.anthropic.answer import MessageAnswer
from trivet_web.dialects.anthropic.objects import (
    MessageErrorBody,
    MessageEvent,
    MessageObject,
    TokenCount,
    error_of,
)
from trivet_web.dialects.anthropic.request import (
    MESSAGES_UNSUPPORTED,
    CountRequest,
    MessageRequest,
)
from trivet_web.dialects.anthropic.stream import MessageChunks
from trivet_web.error_objects import ErrorObject
from trivet_web.field_names import name_fields
from trivet_web.json_response import json_response
from trivet_web.request_name import request_id

blueprint = Blueprint("anthropic", __name__)


@blueprint.after_request
def name_request(response: Response) -> Response:
    """Anthropic's clients read the id under this name."""
    response.headers["Request-Id"] = request_id()
    return response


@blueprint.post("/v1/messages")
@requires(Right.INFER)
@documented(MessageObject, body=MessageRequest, stream=MessageEvent, failed=MessageErrorBody)
def create() -> Response:
    """One message of the model, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(MessageRequest)
    refuse_unsupported(MESSAGES_UNSUPPORTED)
    name_fields(body.names)
    with begun(body.completion(), "msg") as answer:
        _check_thinking(body, answer.exchange.target)
        form = MessageAnswer(answer, answer.exchange.target.id)
        if body.stream:
            return stream_response(answer.exchange, MessageChunks(answer, form))
        return whole_response(answer.exchange, lambda done: json_response(form.whole(done[0])))


@blueprint.post("/v1/messages/count_tokens")
@requires(Right.INFER)
@documented(TokenCount, body=CountRequest, failed=MessageErrorBody)
def count_tokens() -> Response:
    """How long the prompt would be; nothing is computed. Raises: RequestError, ModelNotFound."""
    body = read_body(CountRequest)
    refuse_unsupported(MESSAGES_UNSUPPORTED)
    name_fields(body.names)
    chat = body.chat()
    target = target_of(body.model)
    _check_thinking(body, target)
    form = AnswerForm.of(target, chat.tool_use())
    text = chat.render(target, *form.prompt_messages(for_template(chat.messages)))
    prompt = chat.encode(target, text, None)
    return json_response(TokenCount(len(prompt.token_ids)))


def error_form(error: ErrorObject, status: int) -> tuple[msgspec.Struct, int]:
    """The status stays."""
    return error_of(error, status, request_id()), status


def _check_thinking(body: CountRequest, target: Target) -> None:
    """Raises: RequestError."""
    if body.thinks and target.reasoning_format is None:
        raise RequestError(
            f"thinking is {body.thinking.type if body.thinking else None!r} and model "
            f"{target.deployed.name!r} does not think; leave thinking out",
            param="thinking",
        )
