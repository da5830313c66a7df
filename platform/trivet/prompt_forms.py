"""The forms in which `LLM` takes its prompts, after vLLM's: each brought into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams

Prompt = (
    str | Sequence[int] | Mapping[str, Any]
)  # text, token ids, {"prompt": ...}, {"prompt_token_ids": ...}
Conversation = Sequence[Mapping[str, Any]]  # messages


def as_prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a list of ints is the token ids of one."""
    if isinstance(given, str | Mapping):
        return [given]
    many = list(given)
    if many and isinstance(many[0], int):
        return [cast("list[int]", many)]
    return cast("list[Prompt]", many)


def as_conversations(given: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """A list of conversations; a list of messages is one."""
    if not given or isinstance(given[0], Mapping):
        return [cast("Conversation", given)]
    return list(cast("Sequence[Conversation]", given))


def text_pairs(queries: str | Sequence[str], documents: str | Sequence[str]) -> list[tuple[str, str]]:
    """One query with each document, or query by document. Raises: RequestError."""
    many = [documents] if isinstance(documents, str) else list(documents)
    first = [queries] if isinstance(queries, str) else list(queries)
    if len(first) == 1:
        first *= len(many)
    if len(first) != len(many):
        raise RequestError(
            f"text_1 has {len(first)} texts and text_2 {len(many)}; give one query, or as many as documents",
            param="text_1",
        )
    return list(zip(first, many, strict=True))


def params_per_prompt(given: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """One for all, or one each. Raises: RequestError."""
    if isinstance(given, SamplingParams):
        return [given] * count
    if len(given) != count:
        raise RequestError(
            f"{len(given)} sampling_params for {count} prompts; give one for all, or one each",
            param="sampling_params",
        )
    return list(given)


def text_and_ids(prompt: Prompt) -> tuple[str | None, Sequence[int] | None]:
    """What is given of both; at least one is. Raises: RequestError."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is None and ids is None:
            raise RequestError(
                f"a prompt of keys {sorted(prompt)} holds neither 'prompt' nor 'prompt_token_ids'",
                param="prompts",
            )
        return text, ids
    return None, prompt
