"""Workloads from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.bench.jsonl_workload import read_workload
from trivet.errors import ConfigError, RequestError


def _file(folder: Path, *lines: str) -> Path:
    file = folder / "in.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_batch_lines_and_plain_lines_are_read(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", '
        '"body": {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 9}}',
        "",
        '{"prompt": "text", "max_tokens": 5}',
        '{"prompt": [1, 2, 3]}',
    )
    turns = [turns[0] for turns in read_workload(file, 128).conversations]
    assert [turn.max_tokens for turn in turns] == [9, 5, 128]
    assert [list(turn.prompt.fields) for turn in turns] == [["messages"], ["prompt"], ["prompt"]]
    assert turns[2].prompt.ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": ', "line 2: "),
        ('{"prompt": "a", "messages": []}', "line 2: give either 'prompt' or 'messages'"),
        ('{"max_tokens": 5}', "line 2: give either 'prompt' or 'messages'"),
        ('{"messages": [{"role": "user"}]}', "line 2 has messages; measure it with --endpoint chat"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_workload(_file(tmp_path, '{"prompt": "a"}', line), 8, "text")


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_workload(tmp_path / "none", 8)
    with pytest.raises(ConfigError, match="has no lines"):
        read_workload(_file(tmp_path, ""), 8)
