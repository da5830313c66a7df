"""Which files hold a model's weights, and the tensors of all of them together.

safetensors: `model.safetensors`, or the shards that `model.safetensors.index.json` names. GGUF: one file, or
`NAME-00001-of-00003.gguf` and its siblings, of which the first holds the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.counted import counted
from trivet.errors import ModelFilesError, WeightsError
from trivet.weights import gguf, safetensors
from trivet.weights.json_file import read_json

if TYPE_CHECKING:
    from trivet.weights.raw_tensor import RawTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Tensors under the files' own names, and the files that hold them."""

    tensors: list[RawTensor]
    files: tuple[Path, ...]


def read_safetensors_folder(folder: Path) -> WeightFiles:
    """Raises: ModelFilesError where there are no safetensors; WeightsError naming file and tensor."""
    if (folder / SINGLE).is_file():
        return WeightFiles(safetensors.read_header(folder / SINGLE), (folder / SINGLE,))
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    raise ModelFilesError(_what_is_there_instead(folder))


def has_safetensors(folder: Path) -> bool:
    """Whether `read_safetensors_folder` finds something to read."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def _read_shards(folder: Path) -> WeightFiles:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFilesError(f"{folder / INDEX}: weight_map is missing or empty: fetch the file again")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise ModelFilesError(
                f"{folder / INDEX}: tensor {name!r} is said to be in {str(shard)[:200]!r}; a shard must be a "
                "file of the model's own folder: do not use this model"
            )
        shards.setdefault(shard, []).append(name)
    tensors: list[RawTensor] = []
    for shard, names in sorted(shards.items()):
        tensors += _read_shard(folder / shard, names)
    return WeightFiles(tensors, (*(folder / shard for shard in sorted(shards)), folder / INDEX))


def _is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and not any(c in name for c in "/\\\0")


def _read_shard(path: Path, names: list[str]) -> list[RawTensor]:
    if not path.is_file():
        raise WeightsError(
            f"{path} is missing; {INDEX} says that it holds {counted(len(names), 'tensor')}, {names[0]!r} "
            "among them: fetch this file"
        )
    found = {tensor.name: tensor for tensor in safetensors.read_header(path)}
    for name in names:
        if name not in found:
            raise WeightsError(
                f"{path}: tensor {name!r} is not in it, though {INDEX} says so: fetch both again"
            )
    return [found[name] for name in names]


def _what_is_there_instead(folder: Path) -> str:
    pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pt*"))
    if pickles:
        return (
            f"{folder} has no {SINGLE} but {pickles[0]}, a pickle, which could run a stranger's code and is "
            "not read: convert the model to safetensors"
        )
    return f"{folder} has neither {SINGLE} nor {INDEX}; the download may be incomplete: fetch the weights"


def read_gguf_files(path: Path) -> tuple[gguf.GGUFHeader, WeightFiles]:
    """Header of the first file and the tensors of all; `path` may be any piece of a split model.

    Raises: ModelFilesError, WeightsError naming the piece that is missing.
    """
    pieces: list[Path] = []
    headers = []
    for piece in _pieces(path):
        if not piece.is_file():  # reading a pipe would wait for ever
            raise WeightsError(_no_piece(piece, path))
        headers.append(gguf.read_header(piece))
        pieces.append(piece)
    tensors = [tensor for header in headers for tensor in header.tensors]
    _check_split(headers[0], pieces, tensors)
    return headers[0], WeightFiles(tensors, tuple(pieces))


def _pieces(path: Path) -> Iterator[Path]:
    """One by one, since the number in a name may be absurd. Raises: ModelFilesError."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        yield path
        return
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count:
        raise ModelFilesError(
            f"{path} is named as piece {number} of {count}: give the file its own name back"
        )
    for piece in range(1, count + 1):
        yield path.with_name(f"{stem}-{piece:05}-of-{count:05}.gguf")


def _no_piece(piece: Path, given: Path) -> str:
    if piece.exists() or piece == given:
        return f"{piece} is no regular file; give a GGUF file or the folder of a model"
    return f"{piece} is missing and {given.name} needs it: fetch this file"


def _check_split(first: gguf.GGUFHeader, pieces: list[Path], tensors: list[RawTensor]) -> None:
    count = first.metadata.get("split.count", 0)
    if count not in (0, 1) and count != len(pieces):
        raise WeightsError(
            f"{pieces[0]} is one of {str(count)[:20]} pieces by its metadata and {len(pieces)} by its name: "
            "give the files their names back, NAME-00001-of-00003.gguf"
        )
    stated = first.metadata.get("split.tensors.count", len(tensors))
    if stated != len(tensors):
        raise WeightsError(
            f"{pieces[0]} speaks of {str(stated)[:20]} tensors and its {len(pieces)} pieces hold "
            f"{len(tensors)}; the pieces are of different models: fetch them again"
        )
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise WeightsError(f"{pieces[0]}: two pieces hold the same tensor: fetch them again")
