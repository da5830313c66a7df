"""What a source offers: the files of one revision, and which of them make a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trivet.errors import ModelFilesError, ModelNotFound
from trivet_registry.model_store.store import check_names

_SMALL = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|tokenizer\.model|vocab\.json"
    r"|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template\.(json|jinja)|README\.md|LICENSE.*"
    r"|modules\.json|\d+_[A-Za-z]+/config\.json|additional_chat_templates/tool_use\.jinja"
)
_WEIGHTS = re.compile(r"model\.safetensors|model-\d{5}-of-\d{5}\.safetensors|model\.safetensors\.index\.json")
_PICKLES = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin|pytorch_model\.bin\.index\.json")
_PIECE = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file. A checksum may be SHA-256, or git's SHA-1 of small files; both None: nobody says."""

    name: str
    size_bytes: int
    url: str
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """One revision of a model; `source` names its commit, where the source tells it (ModelScope does not)."""

    source: str
    name: str
    files: Sequence[RemoteFile]
    headers: Mapping[str, str] = field(default_factory=dict)  # to the source's own host


def chosen_files(files: Sequence[RemoteFile], wanted: str | None, *, allows_pickle: bool) -> list[RemoteFile]:
    """Safetensors and what goes with them; or one GGUF model, the one that `wanted` is part of the name of.

    Raises: ModelFilesError, ModelNotFound naming what is there.
    """
    check_names([file.name for file in files])
    ggufs = [
        f for f in files if f.name.endswith(".gguf") and not f.name.rpartition("/")[2].startswith("mmproj")
    ]
    small = [file for file in files if _SMALL.fullmatch(file.name)]
    weights = [file for file in files if _WEIGHTS.fullmatch(file.name)]
    if wanted is None and any(file.name.endswith(".safetensors") for file in weights):
        return [*small, *weights]
    if ggufs:
        return _one_gguf(ggufs, wanted)
    if wanted is not None:
        raise ModelNotFound(
            f"{wanted!r} names one of several GGUF files, and there is none; leave it out to take "
            "what is there",
            param="source",
        )
    pickles = [file for file in files if _PICKLES.fullmatch(file.name)]
    if pickles and not allows_pickle:
        raise ModelFilesError(
            f"its weights are pickles ({pickles[0].name}), which could run a stranger's code; take a "
            "revision with safetensors, or set allow_pickle: they are then converted"
        )
    if pickles:
        return [*small, *pickles]
    names = ", ".join(file.name for file in files[:10]) or "nothing"
    raise ModelFilesError(f"it has neither safetensors nor GGUF; it has: {names}")


def _one_gguf(ggufs: Sequence[RemoteFile], wanted: str | None) -> list[RemoteFile]:
    models: dict[str, list[RemoteFile]] = {}
    for file in ggufs:
        models.setdefault(_PIECE.sub("", file.name), []).append(file)
    fitting = [name for name in models if wanted is None or wanted.lower() in name.lower()]
    exact = [name for name in fitting if wanted in (name, name.removesuffix(".gguf"))]
    if len(exact or fitting) != 1:
        what = f"{wanted!r} is in the name of {len(fitting)} of" if wanted else "it has"
        raise ModelNotFound(
            f"{what} {len(models)} GGUF models: {', '.join(sorted(models)[:30])}; name one by a part of its "
            "name, as in hf:org/name:Q4_K_M",
            param="source",
        )
    return models[(exact or fitting)[0]]
