"""What `/v1/responses` answers with, as structs; field names are OpenAI's."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from trivet_web.api.openai_objects import TokenLogprob


class OutputText(msgspec.Struct, frozen=True, tag="output_text", tag_field="type"):
    """Text of the answer."""

    text: str
    annotations: list[None] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text", tag_field="type"):
    """Text of the thinking."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    """The answer."""

    id: str
    content: list[OutputText]
    status: str = "completed"
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    """The thinking; open models give all of it, so there is no summary."""

    id: str
    content: list[ReasoningText]
    summary: list[None] = []
    status: str = "completed"


class FunctionCallItem(msgspec.Struct, frozen=True, tag="function_call", tag_field="type"):
    """A call; its result comes back under `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"


OutputItem: TypeAlias = MessageItem | ReasoningItem | FunctionCallItem


class InputText(msgspec.Struct, frozen=True, tag="input_text", tag_field="type"):
    """Text of a request."""

    text: str


class StoredMessage(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    """A message of a request: what the user or the model said."""

    id: str
    role: str
    content: list[InputText | OutputText]
    status: str = "completed"


class FunctionResultItem(msgspec.Struct, frozen=True, tag="function_call_output", tag_field="type"):
    """What a call brought."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


StoredItem: TypeAlias = StoredMessage | ReasoningItem | FunctionCallItem | FunctionResultItem


class InputItemList(msgspec.Struct, frozen=True):
    """A page of them."""

    data: list[StoredItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(msgspec.Struct, frozen=True):
    """How many there are."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class InputTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the input were found in the prefix cache; to write there costs nothing."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the output were thinking."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why it ended early."""

    reason: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response; what the request said is in it again."""

    id: str
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    usage: ResponseUsage | None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    store: bool = False
    temperature: float | None = None
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    user: str | None = None
    background: bool = False
    error: None = None
    object: Literal["response"] = "response"


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    code: str | UnsetType = UNSET  # from here on: of an error
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


class DeletedResponse(msgspec.Struct, frozen=True):
    """It is gone."""

    id: str
    deleted: Literal[True] = True
    object: Literal["response.deleted"] = "response.deleted"
