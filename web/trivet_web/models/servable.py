"""Model files on this host that may be registered: in an allowed folder, and such that they can serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trivet.config import Settings
from trivet.errors import ModelFilesError, PermissionDenied, RequestError
from trivet.models.model_files import ModelFiles, open_model
from trivet.plugins import PluginHost
from trivet.text.template_trial import try_template
from trivet.text.tokenizer_files import require_tokenizer

MAX_ENTRIES, MAX_DEPTH = 5000, 6  # of a model's folder


def open_servable(path: str | Path, plugins: PluginHost) -> ModelFiles:
    """Files that an engine can serve. Raises: ModelFilesError."""
    files = open_model(path, plugins)
    require_tokenizer(files.path, files.config)
    return files


def open_new(path: str | Path, plugins: PluginHost) -> ModelFiles:
    """As `open_servable`, for files of strangers: the chat template is tried, too."""
    files = open_servable(path, plugins)
    for template in files.chat_templates.values():
        try_template(template, "<s>", "</s>")  # of some model: many begin with them
    return files


def is_path(reference: str) -> bool:
    """Whether MODEL names files and not a model of the registry."""
    return "/" in reference or reference.startswith("~")


def given_path(text: str, param: str, settings: Settings, *, is_new: bool = False) -> Path:
    """A path that a request names, of a file that is there or `is_new`.

    Raises: RequestError; PermissionDenied outside of `model_roots`.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise RequestError(f"{param} {text!r} names an account that does not exist", param=param) from None
    if not path.is_absolute():
        raise RequestError(f"{param} {text!r} is not absolute; give the whole path", param=param)
    if "\0" in text:
        raise RequestError(f"{param} {text!r} has a zero byte in it", param=param)
    check_roots(path.parent if is_new else path, param, settings)
    return path


def check_roots(path: Path, param: str, settings: Settings) -> None:
    """Also of each file in a folder: a link may lead out of it. Raises: ModelFilesError; PermissionDenied."""
    roots = [Path(root) for root in (settings.model_roots or "").split(os.pathsep) if root]
    if not roots:
        return
    try:
        real = path.resolve(strict=True)
        allowed = [root.expanduser().resolve() for root in roots]
        if not _is_in(real, allowed) or not all(_is_in(link, allowed) for link in _links_in(real)):
            raise PermissionDenied(
                f"{path} is not in, or leads out of, the folders from which models may be registered "
                f"({', '.join(map(str, roots))}); the site setting model_roots has them",
                param=param,
            )
    except (OSError, RuntimeError) as error:
        raise ModelFilesError(f"{path} cannot be opened: {error}; check path and rights") from error


def check_passed_on(place: Path, settings: Settings) -> None:
    """Of a file whose bytes are about to leave their place, by where it really is.

    Raises: PermissionDenied for what is not in `model_roots`, and for files of this site that are no models.
    """
    home, models = settings.paths.home.resolve(), settings.paths.models.resolve()
    if place.is_relative_to(models):
        return
    if place.is_relative_to(home):
        raise PermissionDenied(f"{place} is a file of this site and of no model")
    check_roots(place, "path", settings)


def _is_in(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _links_in(folder: Path) -> Iterator[Path]:
    """Where links of a folder lead; all else in it is in it. Raises: RequestError for what is no model."""
    num_entries = 0
    for place, folders, files in os.walk(folder):
        num_entries += len(folders) + len(files)
        if num_entries > MAX_ENTRIES or len(Path(place).relative_to(folder).parts) > MAX_DEPTH:
            raise RequestError(
                f"{folder} has more than {MAX_ENTRIES} files or folders deeper than {MAX_DEPTH}; name the "
                "folder of one model"
            )
        for name in (*folders, *files):
            entry = Path(place, name)
            if entry.is_symlink():
                yield entry.resolve()
