"""Options that all commands share: a mistake in them is a sentence and exit code 1 or 2, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.commands.connecting import absolute_path, refuse_hub_name
from trivet.errors import ConfigError, ModelFilesError


@pytest.mark.parametrize("content", [b"\xff\xfe", "sk-é".encode()])
def test_key_file_without_a_key_is_refused_by_name(trivet, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    done = trivet("ps", "--api-key-file", str(file))
    assert done.code == 2
    assert f"{file} holds no key" in done.err


def test_account_that_does_not_exist_is_part_of_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir(tmp_path)
    assert absolute_path("~/model") == Path("/home/someone/model")
    assert absolute_path("~no-such-account/model") == tmp_path / "~no-such-account" / "model"


@pytest.mark.parametrize(("model", "source"), [("Org/m-1.5B", "hf:Org/m-1.5B"), ("ms:Org/m", "ms:Org/m")])
def test_the_name_of_a_hubs_model_is_told_how_it_is_brought_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError, match=f"`trivet models pull {source}` brings it"):
        refuse_hub_name(model)
    (tmp_path / "Org/m-1.5B").mkdir(parents=True)
    refuse_hub_name("Org/m-1.5B")


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5"])
def test_bench_refuses_what_is_no_count(trivet, count: str) -> None:
    done = trivet("bench", "latency", f"--repeats={count}")
    assert done.code == 2
    assert f"'{count}' is not a count" in done.err


def test_an_empty_path_is_not_the_working_directory() -> None:
    with pytest.raises(ConfigError, match="the path is empty"):
        absolute_path(" ")
