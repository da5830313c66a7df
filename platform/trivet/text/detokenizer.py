"""Token ids to text as they come, in pieces that are whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivet.text.tokenizer import Tokenizer

_make_decoder = codecs.getincrementaldecoder("utf-8")
MAX_CHARACTER_BYTES = 4  # of UTF-8


class IncrementalDetokenizer:
    """Text of a completion, token by token.

    The pieces joined are the completion's part of `tokenizer.decode(prompt + completion)`: a leading space
    that only the start of a text loses stays if the prompt has text before it, and a character begun in
    the prompt and ended by the completion is the completion's. Bytes of an unfinished character wait for
    the next token; bytes that are no UTF-8 become one U+FFFD each maximal run, as in the full decode.

    Time per token does not depend on how many came before.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        visible_token_ids: Sequence[int] = (),
    ) -> None:
        """Args: visible_token_ids: special tokens that are not skipped with the others."""
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        if visible_token_ids:
            self._skipped = self._skipped - frozenset(visible_token_ids)
        self._decoder = _make_decoder("replace")
        tail = self._tail(prompt_token_ids)
        self._at_start = not tail and tokenizer.token_bytes.strips_leading_space
        self._decoder.decode(tail[incomplete_start(tail) :])

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these ids make final; may be empty."""
        data = b"".join(
            [self._token_bytes[token_id] for token_id in token_ids if token_id not in self._skipped]
        )
        return self._decoder.decode(self._strip(data))

    def finish(self) -> str:
        """What is left of a character that never ended: one U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)

    def _strip(self, data: bytes) -> bytes:
        if self._at_start and data:
            self._at_start = False
            return data.removeprefix(b" ")
        return data

    def _tail(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The last bytes of the prompt's text, enough to see a character that it leaves unfinished."""
        tail = b""
        for token_id in reversed(prompt_token_ids):
            if token_id not in self._skipped:
                tail = self._token_bytes[token_id] + tail
            if len(tail) >= MAX_CHARACTER_BYTES:
                break
        return tail


def incomplete_start(data: bytes) -> int:
    """Where the unfinished character at the end of `data` starts; len(data) if there is none."""
    for start in range(len(data) - 1, max(len(data) - MAX_CHARACTER_BYTES, -1), -1):
        if data[start] & 0xC0 != 0x80:  # no continuation byte: a character starts here
            probe = _make_decoder("replace")
            return len(data) if probe.decode(data[start:]) else start
    return len(data)
