"""JSON files of a model folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.errors import ModelFilesError
from trivet.weights import json_file
from trivet.weights.json_file import read_json


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"[1]", "holds no JSON object"),
        (b"\xff\xfe\xfd", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is no JSON"),
    ],
)
def test_damaged_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFilesError, match=rf"config.json {message}"):
        read_json(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"none.json cannot be read: No such file"):
        read_json(tmp_path / "none.json")


def test_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_file, "MAX_BYTES", 10)
    (tmp_path / "a.json").write_bytes(b'{"a": 12345}')
    with pytest.raises(ModelFilesError, match="more than 10 bytes"):
        read_json(tmp_path / "a.json")


def test_object_is_returned(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, null]}')
    assert read_json(tmp_path / "a.json") == {"a": [1, None]}
