"""The tokenizer of a GGUF file, built from the vocabulary in its metadata.

Two kinds: "gpt2" is byte-level BPE with merges; "llama" is SentencePiece BPE, where a pair merges by the
score of what it becomes. Keys: ggml's docs/gguf.md; defaults where a key is absent: llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from trivet.errors import ModelFilesError
from trivet.text.pre_tokenizers import word_rule
from trivet.text.special_tokens import EndTokens, add_around
from trivet.text.token_bytes import SENTENCEPIECE_SPACE
from trivet.weights.gguf import MetadataValue, read_header

_END_KEYS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")

MAX_PIECE = 512  # characters; SentencePiece trains none that is longer

_Value = TypeVar("_Value", bool, int, str, list[MetadataValue])


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; SentencePiece's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """The `tokenizer.ggml.*` keys of one file, checked.

    Raises: ModelFilesError naming the file and the key.
    """

    def __init__(self, metadata: Mapping[str, MetadataValue], file: str) -> None:
        self._metadata = metadata
        self.file = file
        self.model = self._required("model", str)
        self.tokens = self._strings("tokens")
        types = self.get("token_type", list) or []
        self.types = [int(kind) for kind in types if isinstance(kind, int)]
        if self.types and len(self.types) != len(self.tokens):
            raise self.damaged("token_type", f"has {len(self.types)} entries for {len(self.tokens)} tokens")
        self.id_of: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            self.id_of.setdefault(
                token, token_id
            )  # some converters fill up with copies; the first one counts
        bos = self._token("bos_token_id", 1 if self.model == "llama" else None)
        eos = self._token("eos_token_id", 2 if self.model == "llama" else None)
        self.ends = EndTokens(bos, eos)
        self.unknown = self._token("unknown_token_id", 0 if self.model == "llama" else None)

    def get(self, key: str, kind: type[_Value]) -> _Value | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.damaged(key, f"is a {type(value).__name__} and must be a {kind.__name__}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, bool)
        return default if value is None else value

    def merges(self) -> list[tuple[str, str]]:
        """Pairs in the order in which they merge; a pair is written with a space between."""
        pairs = []
        for line in self._strings("merges"):
            border = line.find(" ", 1)
            left, right = line[:border], line[border + 1 :]
            if border < 0 or not {left, right, left + right} <= self.id_of.keys():
                raise self.damaged(
                    "merges", f"has the entry {line[:40]!r}, which is no pair of the file's tokens"
                )
            pairs.append((left, right))
        return pairs

    def scores(self) -> list[float]:
        values = self._required("scores", list)
        scores = [float(score) for score in values if isinstance(score, int | float)]
        if len(scores) != len(self.tokens):
            raise self.damaged("scores", f"has {len(scores)} numbers for {len(self.tokens)} tokens")
        return scores

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are found in a text before anything else.

        Control tokens are special; so are the begin and end tokens whatever their type, which some
        converters get wrong and old files leave out: an end token must never show in an answer.
        """
        kinds = dict(zip(self.tokens, self.types, strict=False))
        kinds |= dict.fromkeys(filter(None, map(self._token, _END_KEYS)), TokenType.CONTROL)
        return [
            AddedToken(token, special=kind != TokenType.USER_DEFINED, normalized=False)
            for token, kind in kinds.items()
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED) and token
        ]

    def damaged(self, key: str, what: str) -> ModelFilesError:
        return ModelFilesError(
            f"{self.file}: tokenizer.ggml.{key} {what}; the file is damaged: fetch it again"
        )

    def _required(self, key: str, kind: type[_Value]) -> _Value:
        value = self.get(key, kind)
        if value is None:
            raise ModelFilesError(
                f"{self.file} has no tokenizer.ggml.{key}, so it cannot turn text into tokens; "
                "convert the model again with its tokenizer"
            )
        return value

    def _strings(self, key: str) -> list[str]:
        values = self._required(key, list)
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) != len(values):
            raise self.damaged(key, "must hold strings only")
        return strings

    def _token(self, key: str, default: int | None = None) -> str | None:
        token_id = self.get(key, int)
        if token_id is None:
            token_id = default
        if token_id is None or not 0 <= token_id < len(self.tokens):
            return None
        return self.tokens[token_id]


def read_gguf(path: Path) -> tuple[Backend, EndTokens]:
    """Raises: ModelFilesError naming the file and the key."""
    vocabulary = Vocabulary(read_header(path).metadata, str(path))
    if vocabulary.model not in _BUILDERS:
        raise ModelFilesError(
            f"{path}: tokenizer.ggml.model is {vocabulary.model!r}; "
            f"{' and '.join(map(repr, _BUILDERS))} are read. Use the model's folder with tokenizer.json"
        )
    backend, adds_bos = _BUILDERS[vocabulary.model](vocabulary)
    tokens = vocabulary.added_tokens()
    backend.add_special_tokens([token for token in tokens if token.special])
    backend.add_tokens([token for token in tokens if not token.special])
    add_around(
        backend,
        vocabulary.ends,
        add_bos=vocabulary.flag("add_bos_token", adds_bos),
        add_eos=vocabulary.flag("add_eos_token", False),
    )
    return backend, vocabulary.ends


def _byte_level(vocabulary: Vocabulary) -> tuple[Backend, bool]:
    """Returns: the tokenizer, and whether it puts a begin token where the file does not say."""
    rule = word_rule(vocabulary.get("pre", str) or "default", vocabulary.file)
    model = BPE(vocabulary.id_of, vocabulary.merges(), ignore_merges=rule.takes_whole_words)
    backend = Backend(model)
    if rule.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _sentencepiece(vocabulary: Vocabulary) -> tuple[Backend, bool]:
    """As `_byte_level`. The space before a word belongs to it, and a space is put before the first."""
    merges = _merges_by_score(vocabulary)
    model = BPE(vocabulary.id_of, merges, byte_fallback=True, fuse_unk=True, unk_token=vocabulary.unknown)
    backend = Backend(model)
    adds_space = vocabulary.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", SENTENCEPIECE_SPACE)
    prefix = [normalizers.Prepend(SENTENCEPIECE_SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prefix, spaces])
    steps = [decoders.Replace(SENTENCEPIECE_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if adds_space else []))
    return backend, True


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best score first (Kudo and Richardson 2018, BPE mode).

    Control, unknown and byte tokens are no result of a merge: they would let plain text spell them. Nor is a
    token that is longer than any piece: the time to look for its halves is quadratic in its length.
    """
    never = {TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE}
    mergeable = {
        token: token_id
        for token, token_id in vocabulary.id_of.items()
        if len(token) <= MAX_PIECE and (not vocabulary.types or vocabulary.types[token_id] not in never)
    }
    scores = vocabulary.scores()
    found = [
        (-scores[token_id], token_id, border, token)
        for token, token_id in mergeable.items()
        for border in range(1, len(token))
        if token[:border] in mergeable and token[border:] in mergeable
    ]
    found.sort()
    return [(token[:border], token[border:]) for *_, border, token in found]


_BUILDERS: dict[str, Callable[[Vocabulary], tuple[Backend, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}
