"""The forms in which `LLM` takes its prompts, after vLLM's: each brought into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from operator import index
from typing import TYPE_CHECKING, Any, cast

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams

if TYPE_CHECKING:
    from trivet.text.tokenizer import Tokenizer

Prompt = (
    str | Sequence[int] | Mapping[str, Any]
)  # text, token ids, {"prompt": ...}, {"prompt_token_ids": ...}
Conversation = Sequence[Mapping[str, Any]]  # messages


def as_prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a list of numbers, or an array of one dimension, is the token ids of one.

    Raises: RequestError.
    """
    given = _as_list(given)
    if isinstance(given, str | Mapping):
        return [given]
    if not isinstance(given, Iterable):
        raise _no_prompt(given)
    many = list(given)
    if many and isinstance(many[0], Number):
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


def params_per_prompt(given: Any, count: int) -> list[SamplingParams]:
    """One for all, or one each. Raises: RequestError."""
    if isinstance(given, SamplingParams):
        return [given] * count
    is_list = isinstance(given, Iterable) and not isinstance(given, Mapping)
    many: list[Any] = list(given) if is_list else [given]
    for one in many:
        if not isinstance(one, SamplingParams):
            raise RequestError(
                f"sampling_params has {one!r} of type {type(one).__name__}; give SamplingParams(...)",
                param="sampling_params",
            )
    if len(many) != count:
        raise RequestError(
            f"{len(many)} sampling_params for {count} prompts; give one for all, or one each",
            param="sampling_params",
        )
    return many


def priority_per_prompt(given: object, count: int) -> list[int]:
    """One each; None is 0 for all. Raises: RequestError."""
    if given is None:
        return [0] * count
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise RequestError(f"priority is {given!r}; it must be a list of ints, one each", param="priority")
    many = list(given)
    if len(many) != count:
        raise RequestError(f"{len(many)} priorities for {count} prompts; give one each", param="priority")
    try:
        return [index(one) for one in many]
    except TypeError:
        raise RequestError(
            f"priority is {given!r}; its items must be of type int", param="priority"
        ) from None


def text_and_ids(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    """What is given of both; at least one is. Raises: RequestError."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, Mapping):
        return None, _token_ids(prompt)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise RequestError(
            f"a prompt of keys {sorted(map(str, prompt))} holds neither 'prompt' nor 'prompt_token_ids'",
            param="prompts",
        )
    if text is not None and not isinstance(text, str):
        raise _no_prompt(text)
    return text, None if ids is None else _token_ids(ids)


def _token_ids(given: object) -> list[int]:
    """Of any numbers that are integers by type, NumPy's too. Raises: RequestError."""
    given = _as_list(given)
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise _no_prompt(given)
    ids = list(given)
    try:
        return list(map(index, ids))
    except TypeError:
        wrong = next(one for one in ids if not hasattr(one, "__index__"))
        raise RequestError(
            f"a prompt has the token id {wrong!r} of type {type(wrong).__name__}; ids must be of type int",
            param="prompts",
        ) from None


def _as_list(given: Any) -> Any:
    """An array of NumPy or torch as nested lists of Python's own numbers."""
    return given.tolist() if hasattr(given, "tolist") else given


def _no_prompt(given: object) -> RequestError:
    return RequestError(
        f"a prompt is of type {type(given).__name__}; it must be text, a list of token ids, or a mapping "
        "with 'prompt' or 'prompt_token_ids'",
        param="prompts",
    )


def texts_and_ids(tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> list[tuple[str | None, list[int]]]:
    """Text and token ids of each prompt; all texts in one call of the tokenizer. Raises: RequestError."""
    parts = [text_and_ids(prompt) for prompt in prompts]
    texts = [text for text, ids in parts if ids is None and text is not None]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=True))
    return [(text, ids if ids is not None else next(encoded)) for text, ids in parts]
