"""A clone without git-lfs: the commonest model folder that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trivet.errors import ModelFilesError
from trivet.models.companions import read_companions
from trivet.weights import gguf, safetensors
from trivet.weights.json_file import read_json

POINTER = f"""version https://git-lfs.github.com/spec/v1
oid sha256:{"4d7a" * 16}
size 269060552
"""


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.safetensors", safetensors.read_header),
        ("model.gguf", gguf.read_header),
        ("config.json", read_json),
        ("tokenizer.json", lambda path: read_companions(path.parent, {})),
    ],
)
def test_a_pointer_is_named_with_what_brings_the_file(
    name: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(ModelFilesError, match=rf"{name} is a Git LFS pointer .*git lfs pull"):
        read(tmp_path / name)
