"""What `/v1/models` tells clients of every dialect, as structs: OpenAI's names first, then others'."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelObject(msgspec.Struct, frozen=True):
    """What clients may name as `model`, a deployment or an adapter of one: for clients of every dialect."""

    id: str
    created: int
    max_model_len: int | None
    ready: bool
    created_at: str  # Anthropic's, with the name for people and the type
    display_name: str
    model_type: str  # "LLM" | "embedding" | "rerank"; from here on Xinference's
    model_ability: list[str]
    model_name: str  # in the registry
    model_format: str
    quantization: str
    context_length: int | None
    replica: int  # instances that serve
    root: str  # vLLM's name of what is served, here with its version: model:3; of an adapter its name
    parent: str | None = None  # vLLM's name of what an adapter adapts: the deployment that has it
    object: Literal["model"] = "model"
    owned_by: str = "trivet"
    type: Literal["model"] = "model"


class ModelList(msgspec.Struct, frozen=True):
    """Of `GET /v1/models`: all of them, so that Anthropic's pages are one."""

    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False
    object: Literal["list"] = "list"
