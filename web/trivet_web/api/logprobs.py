"""Logprobs of the wire in OpenAI's two forms, and of the prompt in vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trivet.messages import TokenLogprob as WireLogprob
from trivet.text.tokenizer import Tokenizer
from trivet_web.api.openai_objects import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)


def chat_logprobs(entries: Iterable[WireLogprob], tokenizer: Tokenizer, top: int) -> ChatLogprobs:
    """Chat's form: an object for each token."""

    def shown(token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(tokenizer.token_text(token_id), logprob, list(tokenizer.token_bytes[token_id]))

    content = []
    for entry in entries:
        own = shown(entry.token_id, entry.logprob)
        likely = [shown(token_id, logprob) for token_id, logprob in entry.top[:top]]
        content.append(TokenLogprob(own.token, own.logprob, own.bytes, likely))
    return ChatLogprobs(content)


class CompletionLists:
    """Completions' form, in as many parts as come: parallel lists whose offsets go on."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._offset = 0

    def of(
        self, entries: Sequence[WireLogprob], echoed: tuple[int, Sequence[WireLogprob]] | None = None
    ) -> CompletionLogprobs:
        """Args: echoed: the first token of the prompt, and the entries of its others."""
        lists = CompletionLogprobs([], [], [], [])
        if echoed is not None:
            first, others = echoed
            self._put(lists, first, None, None)
            entries = [*others, *entries]
        for entry in entries:
            likely = {self._tokenizer.token_text(token): value for token, value in entry.top[: self._top]}
            # The token itself is always among them, as in OpenAI's answers.
            likely.setdefault(self._tokenizer.token_text(entry.token_id), entry.logprob)
            self._put(lists, entry.token_id, entry.logprob, likely)
        return lists

    def _put(
        self, lists: CompletionLogprobs, token_id: int, logprob: float | None, likely: dict[str, float] | None
    ) -> None:
        text = self._tokenizer.token_text(token_id)
        lists.tokens.append(text)
        lists.token_logprobs.append(logprob)
        lists.top_logprobs.append(likely)
        lists.text_offset.append(self._offset)
        self._offset += len(text)


def prompt_logprobs(entries: Iterable[WireLogprob], tokenizer: Tokenizer, top: int) -> PromptLogprobs:
    """One for each token of the prompt, of which `entries` lack the first."""
    listed: PromptLogprobs = [None]
    for entry in entries:
        likely = {
            str(token_id): PromptLogprob(logprob, rank, tokenizer.token_text(token_id))
            for rank, (token_id, logprob) in enumerate(entry.top[:top], start=1)
        }
        own = PromptLogprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token_id))
        likely.setdefault(str(entry.token_id), own)
        listed.append(likely)
    return listed
