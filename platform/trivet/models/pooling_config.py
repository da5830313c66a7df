"""How a model's files want its hidden states pooled: sentence-transformers' files, or GGUF's key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trivet.errors import ModelFilesError
from trivet.models.description import ModelFiles
from trivet.weights.json_file import read_json

MODULES = "modules.json"
# sentence-transformers' names, old (a switch each) and new (`pooling_mode`), and what they are here.
_MODES = {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last"}
_GGUF_MODES = {1: "mean", 3: "last"}  # llama.cpp's enum llama_pooling_type
_GGUF_OTHER = {2: "cls", 4: "rank"}
_CARRIED_OUT = ("Transformer", "Pooling", "Normalize")


def model_pooling(files: ModelFiles) -> str | None:
    """ "last" or "mean"; None where the files say nothing.

    Raises: ModelFilesError where they want what this version does not carry out.
    """
    return _of_gguf(files) if files.format == "gguf" else _of_folder(files.path)


def _of_gguf(files: ModelFiles) -> str | None:
    kind = files.config.get(f"{files.config.get('general.architecture')}.pooling_type")
    if kind in _GGUF_OTHER:
        raise _unknown(files.path, "pooling_type", _GGUF_OTHER[kind])
    return _GGUF_MODES.get(kind) if type(kind) is int else None


def _of_folder(folder: Path) -> str | None:
    modules = _modules(folder / MODULES)
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind not in _CARRIED_OUT:
            raise ModelFilesError(
                f"{folder / MODULES} lists the module {kind!r}, which this version does not carry out: the "
                "model's vectors would be others; name pooling 'last' or 'mean' for its plain hidden states"
            )
    for module in modules:
        place = folder / str(module.get("path")) / "config.json"
        if str(module.get("type")).endswith("Pooling") and place.is_file():
            return _mode(place)
    return None


def _modules(file: Path) -> list[dict[str, Any]]:
    """Raises: ModelFilesError."""
    if not file.is_file():
        return []
    try:
        modules = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFilesError(f"{file} is no JSON ({str(error)[:100]}): fetch it again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelFilesError(f"{file} holds no list of modules: fetch it again")
    return modules


def _mode(file: Path) -> str:
    """Raises: ModelFilesError."""
    config = read_json(file)
    wanted = [
        key.removeprefix("pooling_mode_")
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if isinstance(config.get("pooling_mode"), str):
        wanted = [config["pooling_mode"]]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise _unknown(file, "the pooling mode", " + ".join(wanted) or "none")
    return _MODES[wanted[0]]


def _unknown(file: Path, what: str, value: str) -> ModelFilesError:
    return ModelFilesError(
        f"{file}: {what} is {value!r:.80}; a model that reads from left to right is pooled by its last token "
        "or the mean: name pooling 'last' or 'mean'"
    )
