"""POST /v1/responses: create and stream; api/responses_stored.py has what is kept of them."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from trivet_web.accounts.ownership import owner_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.sse import stream_response
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.chat import ChatAnswer, begun
from trivet_web.api.conversation import FunctionCall, Message, ToolCall, for_template
from trivet_web.api.documented import documented
from trivet_web.api.logprobs import TextLogprobs
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.responses_input import messages_of
from trivet_web.api.responses_objects import (
    FunctionCallItem,
    IncompleteDetails,
    InputTokens,
    InputTokensDetails,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from trivet_web.api.responses_request import (
    NAMES,
    RESPONSES_UNSUPPORTED,
    CountRequest,
    ResponseRequest,
)
from trivet_web.api.responses_stored import StoredResponse, is_to_be_stored, messages_before, store_of
from trivet_web.api.responses_stream import COMPLETED, ResponseChunks
from trivet_web.api.tokenization import target_of
from trivet_web.api.whole_answer import Completed, whole_response
from trivet_web.field_names import name_fields
from trivet_web.json_response import json_response
from trivet_web.stored_objects import StorageFull, new_id
from trivet_web.web_process import web_process

blueprint = Blueprint("responses", __name__)


@blueprint.post("/v1/responses")
@requires(Right.INFER)
@documented(ResponseObject, body=ResponseRequest, stream=ResponseEvent)
def create() -> Response:
    """One response, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(ResponseRequest)
    refuse_unsupported(RESPONSES_UNSUPPORTED)
    body.check()
    is_stored = is_to_be_stored(body)
    before = messages_before(body)
    name_fields(NAMES)
    with begun(body.chat(before), "resp") as answer:
        draft = Draft(body, answer, before, is_stored=is_stored)
        if body.stream:
            return stream_response(answer.exchange, ResponseChunks(answer, draft.begun(), draft.finish))
        return whole_response(
            answer.exchange,
            lambda done: json_response(draft.finish(_items(answer, done[0]), done[0])),
        )


@blueprint.post("/v1/responses/input_tokens")
@requires(Right.INFER)
@documented(InputTokens, body=CountRequest)
def count_input_tokens() -> Response:
    """How many tokens the input of such a request has. Raises: RequestError, ModelNotFound."""
    body = read_body(CountRequest)
    refuse_unsupported(RESPONSES_UNSUPPORTED)
    asked = ResponseRequest.counted(body)
    asked.check()
    name_fields(NAMES)
    chat = asked.chat(messages_before(asked))
    target = target_of(body.model, body)
    form = AnswerForm.of(target, chat.tool_use())
    text = chat.render(target, *form.prompt_messages(for_template(chat.messages)))
    return json_response(InputTokens(len(chat.encode(target, text, None).token_ids)))


class Draft:
    """One response while it is made."""

    def __init__(
        self, body: ResponseRequest, answer: ChatAnswer, before: list[Message], *, is_stored: bool
    ) -> None:
        self._body = body
        self._answer = answer
        self._before = before
        self._store = store_of(web_process()) if is_stored else None
        answer.exchange.answer.mailbox.ends_slowly = is_stored
        self._owner = owner_of_request()
        self._id = new_id("resp")

    def begun(self) -> ResponseObject:
        """As it is told before anything has come."""
        body, exchange = self._body, self._answer.exchange
        text = msgspec.to_builtins(body.text.format) if body.text and body.text.format else {"type": "text"}
        return ResponseObject(
            id=self._id,
            created_at=exchange.created,
            model=exchange.target.id,
            status="in_progress",
            output=[],
            usage=None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning=msgspec.to_builtins(body.reasoning) if body.reasoning else None,
            store=self._store is not None,
            temperature=self._answer.params.temperature,
            text={"format": text},
            tool_choice=msgspec.to_builtins(body.tool_choice) if body.tool_choice else "auto",
            tools=[_shown(msgspec.to_builtins(tool)) for tool in body.tools or []],
            top_logprobs=body.top_logprobs or 0,
            top_p=self._answer.params.top_p,
            user=body.user,
        )

    def finish(self, items: list[OutputItem], done: Completed) -> ResponseObject:
        """The whole one, stored if it was to be. Raises: Unavailable where the disk does not take it."""
        is_cut = done.finish_reason == "length"
        response = msgspec.structs.replace(
            self.begun(),
            status="incomplete" if is_cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            output=items,
            usage=self._usage(done),
        )
        if self._store is not None:
            messages = [*self._before, *messages_of(self._body.input), _message_of(items)]
            stored = StoredResponse(response, messages, self._body.input_items(), self._owner)
            try:
                self._store.put(self._id, stored, leaves_room=True)
            except OSError as error:
                raise StorageFull(
                    f"the response is complete and cannot be stored: {error.strerror}; make room on the disk "
                    "of the server's home, or send store: false"
                ) from error
        return response

    def _usage(self, done: Completed) -> ResponseUsage:
        usage = self._answer.usage([done])
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            usage.completion_tokens,
            OutputTokensDetails(self._answer.readers[0].reasoning_tokens),
            usage.total_tokens,
        )


def _items(answer: ChatAnswer, done: Completed) -> list[OutputItem]:
    message = answer.readers[0].message(done)
    items: list[OutputItem] = []
    if isinstance(message.reasoning, str):
        items.append(ReasoningItem(new_id("rs"), [ReasoningText(message.reasoning)]))
    if message.content:
        logprobs = TextLogprobs(answer.exchange.target.model.tokenizer, answer.params.logprobs)
        logprobs.add(done.logprobs)
        text = message.content
        items.append(MessageItem(new_id("msg"), [OutputText(text, logprobs=logprobs.take(text))]))
    if isinstance(message.tool_calls, list):
        items += [
            FunctionCallItem(new_id("fc"), call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls
        ]
    if items and done.finish_reason == "length" and not isinstance(items[-1], FunctionCallItem):
        items[-1] = msgspec.structs.replace(items[-1], status="incomplete")
    return items


def _message_of(items: list[OutputItem]) -> Message:
    """The model's turn as the next request reads it."""
    content = "".join(part.text for item in items if isinstance(item, MessageItem) for part in item.content)
    thought = "".join(part.text for i in items if isinstance(i, ReasoningItem) for part in i.content)
    calls = [
        ToolCall(FunctionCall(item.name, item.arguments), item.call_id)
        for item in items
        if isinstance(item, FunctionCallItem) and item.status == COMPLETED
    ]
    return Message(
        role="assistant", content=content, reasoning_content=thought or None, tool_calls=calls or None
    )


def _shown(tool: dict[str, object]) -> dict[str, object]:
    """OpenAI's objects have `strict` always."""
    return {"strict": None, "parameters": None, **{k: v for k, v in tool.items() if v is not None}}
