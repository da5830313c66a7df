"""The tokenizer of a model folder: tokenizer.json, with what tokenizer_config.json adds to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from trivet.errors import ModelFilesError
from trivet.text.special_tokens import EndTokens
from trivet.text.tokenizer_files import tokenizer_json
from trivet.weights.json_file import read_json

_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def read_folder(folder: Path) -> tuple[Backend, EndTokens]:
    """Read tokenizer.json and what is beside it.

    Begin and end tokens are put around texts as tokenizer.json's post-processor says; `add_bos_token` in
    tokenizer_config.json, left over from slow tokenizers, counts for nothing, as in transformers.

    Raises: ModelFilesError naming the file.
    """
    file = tokenizer_json(folder)
    try:
        backend = Backend.from_buffer(file.read_bytes())
    except (ValueError, OSError) as error:
        raise ModelFilesError(f"{file} cannot be read: {error}; fetch it again") from error
    config = _optional_json(folder / "tokenizer_config.json")
    named = {**_optional_json(folder / "special_tokens_map.json"), **config}
    _add_tokens(backend, config, named, folder)
    tokens = EndTokens(_content(named.get("bos_token")), _content(named.get("eos_token")))
    return backend, tokens


def _add_tokens(backend: Backend, config: dict[str, Any], named: dict[str, Any], folder: Path) -> None:
    """Tokens that only tokenizer_config.json knows, and the named ones, which are always special."""
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for token_id, entry in _listed(config, folder):
        content = _content(entry)
        if not content or content in known:
            continue
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
        token = AddedToken(content, special=bool(entry.get("special")), **flags)
        backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
        known[content] = token
        if backend.token_to_id(content) != token_id:
            raise ModelFilesError(
                f"{folder / 'tokenizer_config.json'} gives {content!r} the id {token_id}, and with "
                f"tokenizer.json it gets {backend.token_to_id(content)}; the files are of different models: "
                "fetch both again"
            )
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        content = _content(named.get(role))
        # One that the vocabulary lacks would get an id for which the model has no embedding.
        if not content or backend.token_to_id(content) is None:
            continue
        token = known.get(content) or AddedToken(content, normalized=False)
        if not token.special:  # added again it takes the place of the one that was not
            token.special = True
            backend.add_special_tokens([token])


def _listed(config: dict[str, Any], folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """The entries of added_tokens_decoder by id. Raises: ModelFilesError."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(
        _TOKEN_ID.fullmatch(token_id) and isinstance(entry, dict) for token_id, entry in listed.items()
    ):
        raise ModelFilesError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder is {str(listed)[:80]}; it must hold "
            "an object for each token id: fetch the file again"
        )
    return sorted((int(token_id), entry) for token_id, entry in listed.items())


def _content(entry: object) -> str | None:
    """The text of a token that the files write as "</s>" or as {"content": "</s>", ...}."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) and text else None


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}
