"""The begin and end tokens that a tokenizer puts around a text."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True, slots=True)
class EndTokens:
    """Begin and end token as the vocabulary spells them; None: the model has none."""

    bos: str | None = None
    eos: str | None = None


def add_around(backend: Backend, tokens: EndTokens, *, add_bos: bool, add_eos: bool) -> None:
    """Make `backend` put the tokens around each text when it is asked for special tokens."""
    bos = tokens.bos if add_bos else None
    eos = tokens.eos if add_eos else None
    given = [
        (token, token_id)
        for token in (bos, eos)
        if token and (token_id := backend.token_to_id(token)) is not None
    ]
    names = {token for token, _ in given}
    template = [f"{bos}:0"] if bos in names else []
    template.append("$A:0")
    if eos in names:
        template.append(f"{eos}:0")
    backend.post_processor = TemplateProcessing(single=template, special_tokens=given)
