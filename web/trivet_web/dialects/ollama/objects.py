"""What Ollama's clients get back, as structs; field names are Ollama's, durations are nanoseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from trivet_web.api.openai_objects import TokenLogprob
from trivet_web.error_objects import ErrorObject


class CalledFunction(msgspec.Struct, frozen=True):
    """What the model calls."""

    name: str
    arguments: dict[str, Any]
    index: int


class ToolCallObject(msgspec.Struct, frozen=True):
    """One call."""

    function: CalledFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's turn, or what a line adds to it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET


class AnswerFields(msgspec.Struct, frozen=True, kw_only=True):
    """Of every line; counts and durations are in the last one."""

    model: str
    created_at: datetime
    done: bool = False
    done_reason: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class ChatAnswerObject(AnswerFields, frozen=True, kw_only=True):
    """Of `/api/chat`."""

    message: AnswerMessage


class GenerateAnswerObject(AnswerFields, frozen=True, kw_only=True):
    """Of `/api/generate`."""

    response: str
    thinking: str | UnsetType = UNSET


class EmbedObject(msgspec.Struct, frozen=True):
    """Of `/api/embed`."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingObject(msgspec.Struct, frozen=True):
    """Of `/api/embeddings`."""

    embedding: list[float]


class Details(msgspec.Struct, frozen=True):
    """Of a model's files."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TagObject(msgspec.Struct, frozen=True):
    """A model that requests may name."""

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: Details


class TagList(msgspec.Struct, frozen=True):
    """Of `/api/tags`."""

    models: list[TagObject]


class ProcessObject(msgspec.Struct, frozen=True):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: datetime
    size_vram: int
    context_length: int


class ProcessList(msgspec.Struct, frozen=True):
    """Of `/api/ps`."""

    models: list[ProcessObject]


class ShowObject(msgspec.Struct, frozen=True):
    """Of `/api/show`."""

    modelfile: str
    parameters: str
    template: str
    system: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime


class VersionObject(msgspec.Struct, frozen=True):
    """Of `/api/version`: Trivet's."""

    version: str


class StatusObject(msgspec.Struct, frozen=True):
    """A step of `pull` or `create`."""

    status: str


class OllamaError(msgspec.Struct, frozen=True):
    """The body of an answer that failed, or a line of a stream that failed."""

    error: str


def error_form(error: ErrorObject, status: int) -> tuple[OllamaError, int]:
    """The message alone; the status stays."""
    return OllamaError(error.message), status
