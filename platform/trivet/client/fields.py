"""The optional fields of requests, as keyword arguments that a type checker knows.

Names and meaning are OpenAI's, and vLLM's where OpenAI has none; the README says which are carried out.
A field that is left out has the server's default, which may be the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from trivet.client.calls import JsonObject


class AdapterFields(TypedDict, total=False):
    """Names of an adapter (LoRA) of the model that is asked, as SGLang's and Xinference's clients send it."""

    lora_path: str
    lora_name: str


class SamplingFields(AdapterFields, total=False):
    """Of chats, of completions and of responses."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    seed: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    priority: int
    timeout: float
    cache_salt: str
    truncate_prompt_tokens: int
    response_format: JsonObject
    structured_outputs: JsonObject
    guided_json: str | JsonObject | bool
    guided_regex: str
    guided_choice: Sequence[str]
    guided_grammar: str
    guided_whitespace_pattern: str


class ChoiceFields(SamplingFields, total=False):
    """Of chats and of completions."""

    n: int
    max_tokens: int
    prompt_logprobs: int
    request_id: str
    stream_options: JsonObject
    add_special_tokens: bool


class PromptFields(TypedDict, total=False):
    """What a chat's prompt is made of, beside its messages."""

    tools: Sequence[JsonObject]
    chat_template: str
    chat_template_kwargs: JsonObject
    documents: Sequence[JsonObject]
    add_generation_prompt: bool
    continue_final_message: bool
    reasoning_effort: str


class ChatFields(ChoiceFields, PromptFields, total=False):
    """Of a chat."""

    tool_choice: str | JsonObject
    parallel_tool_calls: bool
    max_completion_tokens: int
    logprobs: bool
    top_logprobs: int
    include_reasoning: bool


class CompletionFields(ChoiceFields, total=False):
    """Of a completion."""

    logprobs: int
    echo: bool
    best_of: int  # n or 1: more are refused


class EmbeddingFields(AdapterFields, total=False):
    """Of embeddings."""

    encoding_format: str
    dimensions: int
    pooling: str
    normalize: bool
    priority: int
    timeout: float
    cache_salt: str
    truncate_prompt_tokens: int
    add_special_tokens: bool


class ScoringFields(AdapterFields, total=False):
    """Of scores."""

    instruction: str
    truncate_prompt_tokens: int
    priority: int
    timeout: float
    cache_salt: str
    encoding_format: str


class RerankFields(AdapterFields, total=False):
    """Of a ranking."""

    instruction: str
    truncate_prompt_tokens: int
    priority: int
    timeout: float
    cache_salt: str
    top_n: int
    return_documents: bool


class TokenizeFields(PromptFields, AdapterFields, total=False):
    """Of token ids."""

    add_special_tokens: bool
    return_token_strs: bool


class DeploymentChanges(TypedDict, total=False):
    """What is to be different. Settings are merged; None takes one back, and device and fallback."""

    model: str
    backend: str
    device: str | None
    replicas: int
    settings: Mapping[str, str | None]
    priority: int
    fallback: str | None
    if_updated_at: datetime  # refused where it was changed since: `updated_at` as it was seen


class ResponseFields(SamplingFields, total=False):
    """Of a response."""

    instructions: str
    store: bool
    previous_response_id: str
    max_output_tokens: int
    tools: Sequence[JsonObject]
    tool_choice: str | JsonObject
    parallel_tool_calls: bool
    text: JsonObject
    reasoning: JsonObject
    include: Sequence[str]
    top_logprobs: int
    metadata: Mapping[str, str]
    user: str
    chat_template_kwargs: JsonObject


class InputFields(AdapterFields, total=False):
    """Of what is counted in place of a response."""

    chat_template_kwargs: JsonObject
    instructions: str
    previous_response_id: str
    tools: Sequence[JsonObject]
    tool_choice: str | JsonObject
    parallel_tool_calls: bool
    text: JsonObject
    reasoning: JsonObject
