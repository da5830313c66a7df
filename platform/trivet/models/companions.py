"""The small files beside a folder's weights: generation config, tokenizer, chat template, licence.

Each may be missing; one that is there and damaged is an error, for a model without its template or with
a wrong end token answers nonsense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trivet.errors import ModelFilesError
from trivet.models.generation_defaults import check_defaults
from trivet.weights.json_file import MAX_BYTES, read_json
from trivet.weights.lfs_pointer import refuse_pointer

GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
SPECIAL_TOKENS = "special_tokens_map.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json")
NAMED_TEMPLATES = ("default", "tool_use")  # of a list: that of other names (`rag`) nothing here asks for
FURTHER_TEMPLATES = "additional_chat_templates"  # a folder, beside TEMPLATES[0]
KEPT = (
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    *TEMPLATES,
    f"{FURTHER_TEMPLATES}/tool_use.jinja",
    SPECIAL_TOKENS,
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "README.md",
    "LICENSE",
    "modules.json",  # how an embedding model pools, with the module's own file
)
MODULES = "[0-9]*_*/config.json"
# Names of generation_config.json that are names of SamplingParams, too
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Companions:
    """What the small files say."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    chat_templates: dict[str, str]  # by name, "default" and "tool_use"
    generation_defaults: dict[str, float]
    num_tokens: int | None  # ids that the tokenizer can make
    vocabulary_size: int | None  # ids without the added tokens: those that any text may hold
    licence: str | None
    files: tuple[Path, ...]


def read_companions(folder: Path, config: Mapping[str, Any]) -> Companions:
    """Raises: ModelFilesError naming the file."""
    generation = _optional_json(folder / GENERATION_CONFIG)
    tokenizer_config = _optional_json(folder / TOKENIZER_CONFIG)
    tokens = _read_tokens(folder, tokenizer_config)
    ends = {
        *_token_ids(config, folder / "config.json"),
        *_token_ids(generation, folder / GENERATION_CONFIG),
        *_end_of_tokenizer(folder, tokenizer_config, tokens),
    }
    bos = config.get("bos_token_id")
    num_tokens, vocabulary_size = (None, None) if tokens is None else tokens.count()
    return Companions(
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=bos if type(bos) is int else None,
        chat_templates=_chat_templates(folder),
        generation_defaults=_generation_defaults(generation, folder / GENERATION_CONFIG),
        num_tokens=num_tokens,
        vocabulary_size=vocabulary_size,
        licence=_licence(folder / "README.md"),
        files=(
            *(folder / name for name in KEPT if (folder / name).is_file()),
            *sorted(path for path in folder.glob(MODULES) if path.is_file()),
        ),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_ids(values: Mapping[str, Any], source: Path) -> list[int]:
    """eos_token_id is a number, a list of numbers, or null."""
    found = values.get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise ModelFilesError(
            f"{source}: eos_token_id is {str(found)[:80]}; it must be a token id or a list of them: "
            "correct the file"
        )
    return ids


def _generation_defaults(generation: Mapping[str, Any], source: Path) -> dict[str, float]:
    defaults: dict[str, float] = {}
    for name in SAMPLING:
        value = generation.get(name)
        if value is None:
            continue
        if type(value) not in (int, float):
            raise ModelFilesError(
                f"{source}: {name} is {str(value)[:80]}; it must be a number: correct the file"
            )
        defaults[name] = value  # top_k stays a whole number
    check_defaults(defaults, source)
    return defaults


def _end_of_tokenizer(folder: Path, config: Mapping[str, Any], tokens: _Tokens | None) -> list[int]:
    """The id of its `eos_token`: a fine-tuned chat model may name the token that ends a turn there alone."""
    token = {**_optional_json(folder / SPECIAL_TOKENS), **config}.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    token_id = tokens.id_of(text) if tokens is not None and isinstance(text, str) else None
    return [] if token_id is None else [token_id]


def _chat_templates(folder: Path) -> dict[str, str]:
    """From their own files, else from the tokenizer's config: a text, or a list of named ones."""
    if (folder / TEMPLATES[0]).is_file():
        further = folder / FURTHER_TEMPLATES / "tool_use.jinja"
        return {
            "default": _read_text(folder / TEMPLATES[0]),
            **({"tool_use": _read_text(further)} if further.is_file() else {}),
        }
    for name in (TEMPLATES[1], TOKENIZER_CONFIG):
        found = _optional_json(folder / name).get("chat_template")
        entries = found if isinstance(found, list) else [{"name": "default", "template": found}]
        texts = {
            entry["name"]: entry["template"]
            for entry in entries
            if isinstance(entry, dict)
            and entry.get("name") in NAMED_TEMPLATES
            and isinstance(entry.get("template"), str)
            and entry["template"]
        }
        if texts:
            return texts
    return {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{path} cannot be read as UTF-8 text ({error}): fetch it again") from error


class _AddedToken(msgspec.Struct):
    id: int
    content: str = ""


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = msgspec.field(default_factory=dict)


class _TokenizerFile(msgspec.Struct):
    """The two parts of tokenizer.json that give ids; the rest is skipped unparsed (30 ms for 150,000)."""

    model: _Vocabulary
    added_tokens: list[_AddedToken] = []


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of tokenizer.json, and those that tokenizer_config.json adds, as fine-tuned models do."""

    vocab: dict[str, int] | list[Any]  # of a unigram model a list of [text, score]
    added: dict[int, str]
    named: dict[int, str]  # by tokenizer_config.json

    def count(self) -> tuple[int, int]:
        """One more than the largest id, with and without the added tokens."""
        ids = self.vocab.values() if isinstance(self.vocab, dict) else range(len(self.vocab))
        last = max((token_id for token_id in ids if token_id not in self.added), default=-1)
        return max([last, *self.added, *self.named]) + 1, last + 1

    def id_of(self, text: str) -> int | None:
        for token_id, content in (self.named | self.added).items():
            if content == text:
                return token_id
        if isinstance(self.vocab, dict):
            return self.vocab.get(text)
        entries = (entry[0] if isinstance(entry, list) and entry else None for entry in self.vocab)
        return next((token_id for token_id, entry in enumerate(entries) if entry == text), None)


def _read_tokens(folder: Path, config: Mapping[str, Any]) -> _Tokens | None:
    """None without tokenizer.json."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFilesError(f"{path} has more than {MAX_BYTES} bytes: it is no tokenizer")
        content = path.read_bytes()
        refuse_pointer(content, path)
        parsed = msgspec.json.decode(content, type=_TokenizerFile)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ModelFilesError(f"{path} is no tokenizer file ({str(error)[:100]}): fetch it again") from error
    added = {token.id: token.content for token in parsed.added_tokens}
    return _Tokens(parsed.model.vocab, added, _named_by(config))


def _named_by(config: Mapping[str, Any]) -> dict[int, str]:
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return {}
    return {
        int(key): str(entry.get("content")) if isinstance(entry, dict) else ""
        for key, entry in listed.items()
        if re.fullmatch("[0-9]{1,9}", key)
    }


_LICENCE = re.compile(r"^license:\s*['\"]?([^\s'\"]+)", re.MULTILINE)


def _licence(readme: Path) -> str | None:
    """From the front matter of the model card."""
    if not readme.is_file():
        return None
    with open(readme, encoding="utf-8", errors="replace") as stream:
        card = stream.read(1 << 16)
    if not card.startswith("---"):
        return None
    found = _LICENCE.search(card.split("\n---", 1)[0])
    return found[1] if found else None
