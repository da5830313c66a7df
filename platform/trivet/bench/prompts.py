"""Prompts in the three forms in which a model can be asked: token ids, text, and chat messages.

Token ids have an exact length on every server that takes them. Text and messages are made of words that
are one token each in the usual vocabularies; what the server counted stands in the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Message: TypeAlias = Mapping[str, object]
Form: TypeAlias = Literal["ids", "text", "chat"]
WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city
"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is asked. Exactly one form is set, and the others are None."""

    ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def fields(self) -> dict[str, object]:
        """What it adds to the body of a request."""
        if self.messages is not None:
            return {"messages": self.messages}
        return {"prompt": self.text if self.ids is None else self.ids}

    def then(self, more: Prompt) -> Prompt:
        """Both as one prompt; `more` is of the same form."""
        if self.ids is not None:
            return Prompt(ids=self.ids + (more.ids or ()))
        if self.text is not None:
            return Prompt(text=f"{self.text} {more.text}")
        return Prompt(messages=(self.messages or ()) + (more.messages or ()))

    def answered(self, text: str, ids: Sequence[int]) -> Prompt:
        """With what the model said to it; a server tells the text only."""
        if self.ids is not None:
            return Prompt(ids=(*self.ids, *ids))
        if self.text is not None:
            return Prompt(text=self.text + text)
        return Prompt(messages=(*(self.messages or ()), {"role": "assistant", "content": text}))


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Draws random prompts of one form. Ids are in [first_id, last_id)."""

    rng: np.random.Generator
    form: Form
    first_id: int
    last_id: int

    def draw(self, num_tokens: int, role: str = "user") -> Prompt:
        """So many ids or words; in a chat they are one message."""
        if self.form == "ids":
            return Prompt(ids=tuple(self.rng.integers(self.first_id, self.last_id, num_tokens).tolist()))
        known = WORDS.split()
        words = " ".join(known[i] for i in self.rng.integers(0, len(known), num_tokens))
        if self.form == "text":
            return Prompt(text=words)
        return Prompt(messages=({"role": role, "content": words},))
