"""What `/v1/files`, `/v1/batches` and `/v1/responses` answer, as typed values; times are Unix seconds."""

from __future__ import annotations

import msgspec

from trivet.client.answers import TokenLogprob

# ---- files and batches ---------------------------------------------------------------------------


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file; `client.files.content` has what is in it."""

    id: str
    bytes: int = 0
    created_at: int = 0
    filename: str = ""
    purpose: str = ""
    expires_at: int | None = None
    status: str = ""
    owner: str = ""  # who sees it; empty: the site


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """It is gone."""

    id: str
    deleted: bool = True


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch was not run."""

    code: str = ""
    message: str = ""
    line: int | None = None
    param: str | None = None


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    """All that were found."""

    data: tuple[BatchFault, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as far as it is."""

    id: str
    endpoint: str = ""
    input_file_id: str = ""
    completion_window: str = ""
    status: str = ""
    created_at: int = 0
    expires_at: int | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    errors: BatchFaults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None
    owner: str = ""
    key_id: int | None = None  # with whose rights its lines are asked

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")


# ---- responses -----------------------------------------------------------------------------------


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text of an item."""

    type: str = ""
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class OutputItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a reasoning or a function_call, as `type` says; fields of the others are empty."""

    type: str
    id: str = ""
    status: str | None = None
    role: str | None = None
    content: tuple[ContentPart, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class InputItem(OutputItem, frozen=True, kw_only=True):
    """What a request said: items of an answer, and the `output` of a function_call_output."""

    output: str | None = None


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of them; `last_id` is the `after` of the next one."""

    data: tuple[InputItem, ...] = ()
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How many an input has."""

    input_tokens: int = 0


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the input was found in the prefix cache."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the output was thinking."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one response."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why it ended early."""

    reason: str = ""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response; what the request said is in it again."""

    id: str
    created_at: int = 0
    model: str = ""
    status: str = ""
    output: tuple[OutputItem, ...] = ()
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, object] | None = None
    store: bool = False
    temperature: float | None = None
    text: dict[str, object] | None = None
    tool_choice: object = None
    tools: tuple[dict[str, object], ...] = ()
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str | None = None
    user: str | None = None
    background: bool = False
    error: object = None

    @property
    def output_text(self) -> str:
        """All text of the answer."""
        messages = (item for item in self.output if item.type == "message")
        return "".join(part.text for item in messages for part in item.content)


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed response; which fields it has depends on its type.

    Text comes as the `delta` of `response.output_text.delta`; the last event carries the whole response.
    """

    type: str
    sequence_number: int = 0
    response: Response | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    item: OutputItem | None = None
    part: ContentPart | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    code: str | None = None  # these three of an error
    message: str | None = None
    param: str | None = None

    @property
    def is_last(self) -> bool:
        return self.type in ("response.completed", "response.incomplete", "response.failed")
