"""Logprobs of the wire in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Iterable

from trivet.messages import TokenLogprob as WireLogprob
from trivet.text.tokenizer import Tokenizer
from trivet_web.api.openai_objects import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob


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


def completion_logprobs(
    entries: Iterable[WireLogprob], tokenizer: Tokenizer, top: int, offset: int
) -> tuple[CompletionLogprobs, int]:
    """The lists, and the offset behind the last token; `offset` is that of the first."""
    tokens, logprobs, tops, offsets = [], [], [], []
    for entry in entries:
        text = tokenizer.token_text(entry.token_id)
        tokens.append(text)
        logprobs.append(entry.logprob)
        tops.append({tokenizer.token_text(token_id): value for token_id, value in entry.top[:top]})
        # The drawn token is always among them, as in OpenAI's answers.
        tops[-1].setdefault(text, entry.logprob)
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(tokens, logprobs, tops, offsets), offset
