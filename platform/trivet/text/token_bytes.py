"""How the ids of a tokenizer spell text: one byte string per token, found from its decoder.

A byte string per token is all that streaming needs: characters split over tokens join by themselves, and
each token costs a list look-up (the usual way, decoding a window of tokens again and again, costs 20 to
60 us per token and breaks on rules that look at the whole text). Decoders whose output is not such a
sum (WordPiece, CTC) are refused; they belong to models that do not generate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from trivet.errors import ModelFilesError

SENTENCEPIECE_SPACE = "▁"  # U+2581
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (OpenAI's encoder.py): itself, or from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF = byte_alphabet()


@dataclass(frozen=True, slots=True)
class Spelling:
    """The rule of one decoder: bytes of a token's text, and whether a text loses one leading space."""

    to_bytes: Callable[[str], bytes]
    strips_leading_space: bool = False


def spelling_of(backend: Backend) -> Spelling:
    """Raises: ModelFilesError naming a decoder whose output is no sum over tokens."""
    decoder = backend.decoder
    if decoder is None:
        return Spelling(str.encode)
    steps = _flatten(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling(_byte_level)
    known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if not set(kinds) <= known or not all(_is_simple(step) for step in steps):
        raise ModelFilesError(
            f"tokenizer.json has the decoder {' + '.join(kinds)}, which cannot be streamed token by token; "
            "ByteLevel, Metaspace and SentencePiece's (Replace, ByteFallback, Fuse, Strip) can"
        )
    replacements = [
        (_pattern(step), _content(step)) for step in steps if step["type"] in ("Replace", "Metaspace")
    ]
    strips = any(
        step["type"] == "Strip" or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in steps
    )
    return Spelling(_sentencepiece(replacements, "ByteFallback" in kinds), strips)


class TokenBytes:
    """Bytes of each id, worked out on first use.

    Ids outside the vocabulary (models pad their embedding) and holes in it spell nothing.
    """

    def __init__(self, backend: Backend, size: int) -> None:
        spelling = spelling_of(backend)
        self.strips_leading_space = spelling.strips_leading_space
        self._backend = backend
        self._to_bytes = spelling.to_bytes
        self._literal = {
            token_id: token.content.encode() for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._known: list[bytes | None] = [None] * size

    def __getitem__(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self._known):
            return b""
        known = self._known[token_id]
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def join(self, ids: Iterable[int]) -> bytes:
        return b"".join([self[token_id] for token_id in ids])

    def longest(self) -> int:
        """Bytes of the longest token; 30 ms for 49,152 tokens, as none of them is kept."""
        plain = (len(self._to_bytes(token)) for token in self._backend.get_vocab(with_added_tokens=False))
        return max(max(plain, default=0), max(map(len, self._literal.values()), default=0), 1)

    def _spell(self, token_id: int) -> bytes:
        # Added tokens stand in the file as they read, so the byte alphabet is not undone in them: an
        # added "é" is that letter, where in the rest of the vocabulary it would be the byte 0xE9.
        literal = self._literal.get(token_id)
        if literal is not None:
            return literal
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._to_bytes(token)


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


def _is_simple(step: dict[str, Any]) -> bool:
    """Whether a step acts on each token alone, or takes at most one space from the start."""
    if step["type"] == "Replace":
        return "String" in step["pattern"]
    if step["type"] == "Strip":
        return (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
    return True


def _pattern(step: dict[str, Any]) -> str:
    pattern: str = step["replacement"] if step["type"] == "Metaspace" else step["pattern"]["String"]
    return pattern


def _content(step: dict[str, Any]) -> str:
    return " " if step["type"] == "Metaspace" else step["content"]


def _byte_level(token: str) -> bytes:
    """A token with a character outside the byte alphabet stands for itself, as `tokenizers` has it."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _sentencepiece(replacements: list[tuple[str, str]], byte_fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode()

    return to_bytes
