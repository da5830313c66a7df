"""Logprobs of the wire in OpenAI's two forms, and of the prompt in vLLM's."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trivet.messages import TokenLogprob as WireLogprob
from trivet.text.detokenizer import IncrementalDetokenizer
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


class TextLogprobs:
    """Those of a message's tokens, among all that a model drew: its thinking and its calls have others."""

    def __init__(self, tokenizer: Tokenizer, top: int | None) -> None:
        self._tokenizer = tokenizer
        self._top = top or 0  # None: there will be no entries
        self._entries: list[WireLogprob] = []
        self._ends: list[int] = []  # of each, in bytes
        self._data = b""
        self._at = 0  # behind the text that was told
        self._num_told = 0

    def add(self, entries: Iterable[WireLogprob]) -> None:
        """Of tokens as they come."""
        for entry in entries:
            self._data += self._tokenizer.token_bytes[entry.token_id]
            self._entries.append(entry)
            self._ends.append(len(self._data))

    def take(self, text: str) -> list[TokenLogprob]:
        """Of the tokens that begin the next `text`; one that two texts share goes with the first."""
        start = self._data.find(text.encode(), self._at) if self._entries else -1
        if start < 0:
            return []
        self._at = start + len(text.encode())
        first = max(self._num_told, bisect_right(self._ends, start))
        self._num_told = max(first, bisect_left(self._ends, self._at) + 1)
        return chat_logprobs(self._entries[first : self._num_told], self._tokenizer, self._top).content


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that stands before its completion."""

    text: str
    first: int  # token, which has no logprob
    others: Sequence[WireLogprob]


class CompletionLists:
    """Completions' form, in as many parts as come: parallel lists whose offsets go on.

    Offsets count the characters of the text: of the tokens that make one character together all begin where
    it does, and a special token that the text does not show takes no room.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, detokenizer: IncrementalDetokenizer) -> None:
        """Args: detokenizer: a new one of the completion."""
        self._tokenizer = tokenizer
        self._top = top
        self._detokenizer = detokenizer
        self._offset = 0

    def of(self, entries: Sequence[WireLogprob], echoed: EchoedPrompt | None = None) -> CompletionLogprobs:
        lists = CompletionLogprobs([], [], [], [])
        if echoed is not None:
            self._put_prompt(lists, echoed)
        for entry in entries:
            self._put(lists, entry.token_id, entry)
            self._offset += len(self._detokenizer.push([entry.token_id]))
        return lists

    def _put_prompt(self, lists: CompletionLogprobs, echoed: EchoedPrompt) -> None:
        shown, specials = IncrementalDetokenizer(self._tokenizer), self._tokenizer.special_ids
        for token_id, entry in [(echoed.first, None), *((entry.token_id, entry) for entry in echoed.others)]:
            self._put(lists, token_id, entry)
            text = self._tokenizer.token_text(token_id)
            is_written = token_id in specials and echoed.text.startswith(text, self._offset)
            self._offset += len(text if is_written else shown.push([token_id]))
        self._offset = len(echoed.text)

    def _put(self, lists: CompletionLogprobs, token_id: int, entry: WireLogprob | None) -> None:
        text = self._tokenizer.token_text(token_id)
        lists.tokens.append(text)
        lists.text_offset.append(self._offset)
        if entry is None:
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
            return
        likely = {self._tokenizer.token_text(token): value for token, value in entry.top[: self._top]}
        likely.setdefault(text, entry.logprob)  # always among them, as in OpenAI's answers
        lists.token_logprobs.append(entry.logprob)
        lists.top_logprobs.append(likely)


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
