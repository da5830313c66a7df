"""Whether model files bring a tokenizer that can be read: asked when a model is registered.

Cheap: nothing is loaded, so the engine may still find the tokenizer damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet.errors import ModelFilesError

FILE = "tokenizer.json"
# Formats that stand alone in older folders. Each needs a library of its own to be read exactly, so the
# folder is refused with the way to convert it once, rather than converted anew at every launch.
OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "qwen.tiktoken")
GGUF_KEY = "tokenizer.ggml.model"


def require_tokenizer(path: Path, metadata: Mapping[str, object]) -> None:
    """`metadata` is of the GGUF file, where `path` is one. Raises: ModelFilesError saying what would do."""
    if path.is_dir():
        tokenizer_json(path)
    elif GGUF_KEY not in metadata:
        raise ModelFilesError(
            f"{path} has no {GGUF_KEY}, so it cannot turn text into tokens; "
            "convert the model again with its tokenizer"
        )


def tokenizer_json(folder: Path) -> Path:
    """The file. Raises: ModelFilesError naming what is there instead."""
    file = folder / FILE
    if file.is_file():
        return file
    others = [name for name in OTHER_FORMATS if (folder / name).is_file()]
    if not others:
        raise ModelFilesError(f"{folder} has no {FILE}; fetch it from where the model came from")
    raise ModelFilesError(
        f"{folder} has {', '.join(others)} and no {FILE}, the one format that is "
        "read; convert it once where transformers and sentencepiece are installed: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )
