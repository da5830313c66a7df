"""Model files that lie on the host and could be registered: a new site offers them, nobody types a path.

Looked for in the folders of `model_roots`; where none are set, in the usual places and beside the demo model.
A search is bounded: folders may be large, and on another machine's disk.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trivet.config import Settings
from trivet.demo_model import find_demo_model
from trivet.errors import ModelFilesError

USUAL_PLACES = ("~/.cache/huggingface/hub", "~/models", "/models")
MAX_DEPTH = 5  # hub/models--org--name/snapshots/revision/file
MAX_ENTRIES = 20_000
MAX_FOUND = 100
LIMIT_S = 3.0
_PART = re.compile(r"-(\d{5})-of-\d{5}$")  # of a GGUF model in several files: the first one is named


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """A folder in Hugging Face's layout or a GGUF file; its parts are counted, nothing in it was read."""

    path: Path
    name: str
    size_bytes: int


def find_model_files(settings: Settings) -> list[FoundFiles]:
    """By name; the demo model first where any folder is allowed."""
    roots = [Path(root).expanduser() for root in settings.model_roots.split(os.pathsep) if root]
    usual = [Path(place).expanduser() for place in USUAL_PLACES]
    found = sorted(search(roots or usual), key=lambda one: one.name.lower())
    return found if roots else [*_demo_model(), *found]


def search(folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> list[FoundFiles]:
    """In the order in which they are met; what cannot be read is passed over."""
    end_s, num_entries, found = clock() + LIMIT_S, 0, list[FoundFiles]()
    waiting = [(folder, 0) for folder in reversed(folders)]
    while waiting and len(found) < MAX_FOUND and num_entries < MAX_ENTRIES and clock() < end_s:
        folder, depth = waiting.pop()
        entries = _entries(folder)
        num_entries += len(entries)
        names = {entry.name for entry in entries}
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            found.append(FoundFiles(folder, _name_of(folder), sum(map(_size, entries))))
            continue
        found += _gguf_files(entries)
        if depth < MAX_DEPTH:
            waiting += [(Path(entry.path), depth + 1) for entry in entries if _is_folder(entry)]
    return found[:MAX_FOUND]


def _gguf_files(entries: Sequence[os.DirEntry[str]]) -> Iterator[FoundFiles]:
    """One for all parts of a model, by its first one."""
    sizes: dict[str, int] = {}
    first: dict[str, Path] = {}
    for entry in entries:
        stem = entry.name.removesuffix(".gguf")
        if stem == entry.name:
            continue
        name, part = _PART.sub("", stem), _PART.search(stem)
        sizes[name] = sizes.get(name, 0) + _size(entry)
        if part is None or int(part[1]) == 1:
            first[name] = Path(entry.path)
    for name, path in first.items():
        yield FoundFiles(path, name, sizes[name])


def _demo_model() -> Iterator[FoundFiles]:
    try:
        path = find_demo_model()
    except ModelFilesError:  # it is not installed
        return
    yield FoundFiles(path, "smollm2", path.stat().st_size)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name, reverse=True)  # the last is looked into first
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Links are not followed: they may lead in a circle."""
    try:
        return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
    except OSError:
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a link to nowhere
        return 0


def _name_of(folder: Path) -> str:
    """Of the hub's cache the repository's, not the revision's."""
    repository = folder.parent.parent.name
    is_cached = folder.parent.name == "snapshots" and repository.startswith("models--")
    return repository.rpartition("--")[2] if is_cached else folder.name
