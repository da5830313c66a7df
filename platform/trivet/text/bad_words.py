"""Bad words as the token sequences that spell them.

As vLLM does it: a word as it stands, and with a space before it where that is another token, because
a tokenizer joins a space to the word behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from trivet.text.tokenizer import Tokenizer

MAX_KEPT = 4  # lists of words; the completions of one prompt come one after the other


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of each word, and of each word behind a space where they are as many and begin otherwise."""
    return list(_spelled(tokenizer, tuple(words)))


@lru_cache(maxsize=MAX_KEPT)
def _spelled(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """56 ms for the most and longest words that are taken, on the engine's loop."""
    plain = [word.lstrip() for word in words]
    texts = plain + [f" {word}" for word in plain]
    encoded = [tuple(ids) for ids in tokenizer.encode_batch(texts, add_special_tokens=False)]
    found = []
    for bare, spaced in zip(encoded[: len(plain)], encoded[len(plain) :], strict=True):
        found += [bare] if bare else []
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            found.append(spaced)
    return tuple(found)
