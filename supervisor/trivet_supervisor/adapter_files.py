"""The files of adapters (LoRA) that an engine is told to load, as another host has to have them, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet.engine_settings import parse_engine_settings
from trivet.errors import ModelFilesError, Unavailable
from trivet.launching import ModelFile
from trivet.models.adapter_files import CONFIG, WEIGHTS
from trivet_registry.digests import sha256_of

GGUF = ".gguf"


def adapter_files(settings: Mapping[str, str]) -> list[ModelFile]:
    """With their SHA-256: adapters are not registered, so nobody has read them before.

    Raises: Unavailable for what cannot be read; ConfigError.
    """
    found = []
    for name, folder in parse_engine_settings(settings).adapters.items():
        try:
            place = Path(folder)
            files = [place] if place.suffix == GGUF else [place / CONFIG, place / WEIGHTS]
            for one in files:
                if one.exists() and not one.is_file():  # to open a pipe may take for ever
                    raise ModelFilesError(f"{one} is no regular file")
            found += [ModelFile(str(one), one.stat().st_size, sha256_of(one)) for one in files]
        except (OSError, ModelFilesError) as error:
            raise Unavailable(f"adapter {name!r} cannot be read on the supervisor's host: {error}") from error
    return found
