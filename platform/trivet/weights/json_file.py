"""JSON files of a model folder, read within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trivet.errors import ModelFilesError
from trivet.weights.lfs_pointer import refuse_pointer

# A tokenizer.json has up to 40 MB, an index of shards 10 MB, a config 10 KB.
MAX_BYTES = 128 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file. Raises: ModelFilesError naming the file."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ModelFilesError(
            f"{path} cannot be read: {error.strerror or error}; check path and rights"
        ) from error
    if len(content) > MAX_BYTES:
        raise ModelFilesError(f"{path} has more than {MAX_BYTES} bytes: it is no file of a model")
    refuse_pointer(content, path)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(
            f"{path} is no JSON ({str(error)[:100]}): correct it or fetch it again"
        ) from error
    if not isinstance(parsed, dict):
        raise ModelFilesError(f"{path} holds no JSON object: correct it or fetch it again")
    return parsed
