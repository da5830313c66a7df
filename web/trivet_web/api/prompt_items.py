"""The field that holds prompts: text, token ids, or a list of either; msgspec tells no list from another."""

from __future__ import annotations

from typing import TypeAlias

from trivet.errors import RequestError
from trivet_web.api.inference import Target
from trivet_web.api.sampling_fields import Integer
from trivet_web.web_process import web_process

Given: TypeAlias = str | list[str | Integer | list[Integer]]
Item: TypeAlias = str | list[int]


def items_of(given: Given, field: str) -> list[Item]:
    """Each prompt by itself. Raises: RequestError naming the field."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError(f"{field} is an empty list; send at least one text", param=field)
    if len({type(item) for item in given}) > 1:
        raise RequestError(f"{field} mixes texts, token ids and lists; send one kind", param=field)
    numbers = [item for item in given if isinstance(item, int)]
    return [numbers] if numbers else [item for item in given if not isinstance(item, int)]


def token_ids_of(
    target: Target, items: list[Item], field: str, *, adds_special: bool = True
) -> list[list[int]]:
    """Of each item; texts are encoded with the tokens that the model wants around them, if `adds_special`.

    Raises: RequestError for an item without tokens, or with an id that the model does not have;
        ContextLengthExceeded or RequestTooLarge for texts that are too long to be looked at.
    """
    texts = [item for item in items if isinstance(item, str)]
    encoded = iter(
        web_process().prompts.encode(
            target.model, texts, target.max_model_len, field, add_special_tokens=adds_special
        )
    )
    all_ids = [next(encoded) if isinstance(item, str) else item for item in items]
    for number, ids in enumerate(all_ids):
        path = field if len(items) == 1 else f"{field}[{number}]"
        if not ids:
            raise RequestError(f"{path} has no tokens; send at least one", param=path)
        wrong = [one for one in (min(ids), max(ids)) if not 0 <= one < target.model.num_tokens]
        if wrong:
            raise RequestError(
                f"{path} holds token id {wrong[0]}; ids go from 0 to {target.model.num_tokens - 1}",
                param=path,
            )
    return all_ids
