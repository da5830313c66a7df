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
from trivet.weights.json_file import MAX_BYTES, read_json

GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
TEMPLATES = ("chat_template.jinja", "chat_template.json")
KEPT = (
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    *TEMPLATES,
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "README.md",
    "LICENSE",
)
# Names of generation_config.json that are names of SamplingParams, too
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Companions:
    """What the small files say."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    chat_template: str | None
    generation_defaults: dict[str, float]
    num_tokens: int | None  # ids that the tokenizer can make
    vocabulary_size: int | None  # ids without the added tokens: those that any text may hold
    licence: str | None
    files: tuple[Path, ...]


def read_companions(folder: Path, config: Mapping[str, Any]) -> Companions:
    """Raises: ModelFilesError naming the file."""
    generation = _optional_json(folder / GENERATION_CONFIG)
    ends = {*_token_ids(config, folder / "config.json"), *_token_ids(generation, folder / GENERATION_CONFIG)}
    bos = config.get("bos_token_id")
    num_tokens, vocabulary_size = _count_tokens(folder)
    return Companions(
        eos_token_ids=tuple(sorted(ends)),
        bos_token_id=bos if type(bos) is int else None,
        chat_template=_chat_template(folder),
        generation_defaults=_generation_defaults(generation, folder / GENERATION_CONFIG),
        num_tokens=num_tokens,
        vocabulary_size=vocabulary_size,
        licence=_licence(folder / "README.md"),
        files=tuple(folder / name for name in KEPT if (folder / name).is_file()),
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
    return defaults


def _chat_template(folder: Path) -> str | None:
    """From its own file, else from the tokenizer's config: a text, or a list of named ones with a default."""
    if (folder / TEMPLATES[0]).is_file():
        return _read_text(folder / TEMPLATES[0])
    for name in (TEMPLATES[1], TOKENIZER_CONFIG):
        template = _optional_json(folder / name).get("chat_template")
        if isinstance(template, list):
            named = [entry for entry in template if isinstance(entry, dict)]
            template = next(
                (entry.get("template") for entry in named if entry.get("name") == "default"), None
            )
        if isinstance(template, str) and template:
            return template
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{path} cannot be read as UTF-8 text ({error}): fetch it again") from error


class _AddedToken(msgspec.Struct):
    id: int


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = msgspec.field(default_factory=dict)


class _TokenizerFile(msgspec.Struct):
    """The two parts of tokenizer.json that give ids; the rest is skipped unparsed (30 ms for 150,000)."""

    model: _Vocabulary
    added_tokens: list[_AddedToken] = []


def _count_tokens(folder: Path) -> tuple[int | None, int | None]:
    """One more than the largest id, with and without the added tokens; None without tokenizer.json.

    tokenizer_config.json may add tokens to those of tokenizer.json, as fine-tuned chat models do.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        return None, None
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFilesError(f"{path} has more than {MAX_BYTES} bytes: it is no tokenizer")
        parsed = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ModelFilesError(f"{path} is no tokenizer file ({str(error)[:100]}): fetch it again") from error
    vocab = parsed.model.vocab
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    added_ids = {token.id for token in parsed.added_tokens}
    last = max((token_id for token_id in ids if token_id not in added_ids), default=-1)
    added = _optional_json(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    named = [int(key) for key in added if re.fullmatch("[0-9]{1,9}", key)] if isinstance(added, dict) else []
    return max([last, *named, *added_ids]) + 1, last + 1


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
