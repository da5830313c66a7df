"""The files of adapters (LoRA) that an engine is told to load, as another host has to have them, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet.engine_settings import parse_engine_settings
from trivet.errors import ModelFilesError, Unavailable
from trivet.launching import ModelFile
from trivet_registry.digests import sha256_of

GGUF = ".gguf"
_SUFFIXES = (".json", ".safetensors")  # what an engine reads of a folder


def adapter_files(settings: Mapping[str, str]) -> list[ModelFile]:
    """With their SHA-256: adapters are not registered, so nobody has read them before.

    Raises: Unavailable for what cannot be read; ConfigError.
    """
    found = []
    for name, folder in parse_engine_settings(settings).adapters.items():
        try:
            place = Path(folder)
            is_file = place.suffix == GGUF
            files = [place] if is_file else sorted(f for f in place.iterdir() if f.suffix in _SUFFIXES)
            found += [ModelFile(str(one), one.stat().st_size, sha256_of(one)) for one in files]
        except (OSError, ModelFilesError) as error:
            raise Unavailable(f"adapter {name!r} cannot be read on the supervisor's host: {error}") from error
    return found
