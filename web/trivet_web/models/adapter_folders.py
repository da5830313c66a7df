"""Folders, or GGUF files, of adapters (LoRA) that a launch names: allowed where those of models are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet.config import Settings
from trivet.engine_settings import parse_engine_settings
from trivet.errors import ModelFilesError, RequestError
from trivet.models.hf_folder import ADAPTER_CONFIG
from trivet_web.models.servable import given_path

_SETTINGS = ("adapters", "lora_modules")  # the second is vLLM's name
_PARAM = "settings.adapters"


def named_adapters(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Folders by name. Raises: ConfigError."""
    named = {name: value for name in _SETTINGS if (value := settings.get(name))}
    return parse_engine_settings(named).adapters


def check_adapters(settings: Mapping[str, str | None], site: Settings) -> None:
    """Call it before a transaction: a disk may be slow.

    Raises: ConfigError; RequestError for a path that is not whole; PermissionDenied outside of `model_roots`;
    ModelFilesError.
    """
    for name, folder in named_adapters(settings).items():
        if not Path(folder).is_absolute():  # an engine has another working directory, and knows no "~"
            raise RequestError(
                f"the folder of adapter {name!r} is {folder[:500]!r}, which is not absolute; give the whole "
                "path",
                param=_PARAM,
            )
        place = given_path(folder, _PARAM, site)
        try:
            is_there = (place if place.suffix == ".gguf" else place / ADAPTER_CONFIG).is_file()
        except OSError as error:  # a folder of another account, a name that is too long
            raise ModelFilesError(f"{folder[:500]} cannot be read: {error.strerror}") from None
        if not is_there:
            raise ModelFilesError(
                f"{folder} is no adapter: it has no {ADAPTER_CONFIG}; give a folder that PEFT has written, "
                "or a GGUF file of an adapter"
            )
