"""Opening a model: everything about it that its files say, from headers and small files alone.

Cheap (50 ms for SmolLM2, most of it the vocabulary), and neither torch nor transformers is imported: the
supervisor calls this to register, check and plan.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.errors import ModelFilesError
from trivet.models.description import ModelFiles
from trivet.models.gguf_model import open_gguf
from trivet.models.hf_folder import open_folder
from trivet.weights.shards import has_safetensors

if TYPE_CHECKING:
    from trivet.plugins import PluginHost

__all__ = ["ModelFiles", "open_model"]

_PIECE = re.compile(r"-\d{5}-of-\d{5}$")


def open_model(path: str | Path, host: PluginHost | None = None) -> ModelFiles:
    """Open a folder in Hugging Face's layout, a GGUF file, or a folder with one GGUF model.

    `host` adds the architectures of plugins.

    Raises: ModelFilesError, UnsupportedArchitecture (GGUF), WeightsError naming file and tensor.
    """
    try:
        return _open(_expanded(path), host)
    except OSError as error:  # no rights, a name too long, a file that went away meanwhile
        raise ModelFilesError(
            f"{str(path)[:500]} cannot be opened: {error}; check path and rights"
        ) from error


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~ of an unknown user
        raise ModelFilesError(f"{str(path)[:500]}: {error}; give the whole path") from error


def _open(place: Path, host: PluginHost | None) -> ModelFiles:
    if not place.exists():
        raise ModelFilesError(f"{place} does not exist; give a model folder or a GGUF file")
    if place.is_dir():
        pieces = _gguf_models(place)
        if pieces and not has_safetensors(place):
            return open_gguf(_only(pieces, place))
        return open_folder(place, {} if host is None else host.architectures)
    if place.suffix == ".safetensors":
        raise ModelFilesError(f"{place} is one file of a model; give its folder, which has config.json too")
    return open_gguf(place)


def _gguf_models(folder: Path) -> list[Path]:
    """One file of each GGUF model in a folder; vision projectors are no models."""
    models: dict[str, Path] = {}
    for file in sorted(folder.glob("*.gguf")):
        if not file.name.startswith("mmproj"):
            models.setdefault(_PIECE.sub("", file.stem), file)
    return list(models.values())


def _only(files: list[Path], folder: Path) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise ModelFilesError(
            f"{folder} holds {len(files)} GGUF models ({names}); give the path of one of them"
        )
    return files[0]
