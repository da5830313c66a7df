"""Model files on this host that may be registered: in an allowed folder, and such that they can serve."""

from __future__ import annotations

import os
from pathlib import Path

from trivet.config import Settings
from trivet.errors import ModelFilesError, PermissionDenied, RequestError
from trivet.models.model_files import ModelFiles, open_model
from trivet.plugins import PluginHost
from trivet.text.template_trial import try_template
from trivet.text.tokenizer_files import require_tokenizer


def open_servable(path: str | Path, plugins: PluginHost) -> ModelFiles:
    """Files that an engine can serve. Raises: ModelFilesError."""
    files = open_model(path, plugins)
    require_tokenizer(files.path, files.config)
    return files


def open_new(path: str | Path, plugins: PluginHost) -> ModelFiles:
    """As `open_servable`, for files of strangers: the chat template is tried, too."""
    files = open_servable(path, plugins)
    if files.chat_template is not None:
        try_template(files.chat_template)
    return files


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
        inside = [real, *(entry.resolve() for entry in real.rglob("*"))] if real.is_dir() else [real]
        allowed = [root.expanduser().resolve() for root in roots]
    except (OSError, RuntimeError) as error:
        raise ModelFilesError(f"{path} cannot be opened: {error}; check path and rights") from error
    for entry in inside:
        if not any(entry.is_relative_to(root) for root in allowed):
            raise PermissionDenied(
                f"{path} is not in, or leads out of, the folders from which models may be registered "
                f"({', '.join(map(str, roots))}); the site setting model_roots has them",
                param=param,
            )
