from __future__ import annotations

from pathlib import Path

import pytest

from trivet.demo_model import find_demo_model
from trivet.errors import ModelFilesError
from trivet.models.model_files import open_model
from trivet.text.tokenizer_files import require_tokenizer


def test_a_folder_needs_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"has no tokenizer\.json; fetch it"):
        require_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelFilesError, match=r"has tokenizer\.model and no tokenizer\.json.*convert it"):
        require_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.json").touch()
    require_tokenizer(tmp_path, {})


def test_a_gguf_file_needs_its_vocabulary() -> None:
    files = open_model(find_demo_model())
    require_tokenizer(files.path, files.config)
    without = {key: value for key, value in files.config.items() if not key.startswith("tokenizer.")}
    with pytest.raises(ModelFilesError, match=r"has no tokenizer\.ggml\.model.*convert the model again"):
        require_tokenizer(files.path, without)
