"""The small files beside a folder's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trivet.errors import ModelFilesError
from trivet.models.companions import Companions, read_companions


def read(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> Companions:
    """`generation_config=...` writes generation_config.json; text is written as it is."""
    for stem, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.json").write_text(text)
    return read_companions(folder, config or {})


def test_nothing_there_means_nothing_known(tmp_path: Path) -> None:
    assert read(tmp_path) == Companions((), None, None, {}, None, None, None, ())


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        (2, None, (2,)),
        ([3, 1], 2, (1, 2, 3)),
        (None, [128_001, 128_009], (128_001, 128_009)),
        (2, [2, 2], (2,)),
    ],
)
def test_end_tokens_are_those_of_both_configs(
    config: object, generation: object, ends: tuple[int, ...], tmp_path: Path
) -> None:
    found = read(tmp_path, {"eos_token_id": config}, generation_config={"eos_token_id": generation})
    assert found.eos_token_ids == ends


@pytest.mark.parametrize("ends", ["</s>", [1, "2"], -1, True, 1.5])
def test_end_token_that_is_no_id_is_refused(ends: object, tmp_path: Path) -> None:
    with pytest.raises(
        ModelFilesError, match=r"generation_config.json: eos_token_id is .*; it must be a token id"
    ):
        read(tmp_path, generation_config={"eos_token_id": ends})


@pytest.mark.parametrize(("bos", "expected"), [(1, 1), (0, 0), (None, None), ([1], None), (True, None)])
def test_begin_token_is_one_id_or_none(bos: object, expected: int | None, tmp_path: Path) -> None:
    assert read(tmp_path, {"bos_token_id": bos}).bos_token_id == expected


def test_sampling_defaults_are_taken_and_the_rest_is_not(tmp_path: Path) -> None:
    generation = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": None,
        "repetition_penalty": 1.05,
        "max_new_tokens": 5,
        "do_sample": True,
    }
    defaults = read(tmp_path, generation_config=generation).generation_defaults
    assert defaults == {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    assert type(defaults["top_k"]) is int


def test_sampling_default_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="temperature is hot; it must be a number"):
        read(tmp_path, generation_config={"temperature": "hot"})


def test_template_file_goes_before_the_tokenizer_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("Grüße {{ messages }}", encoding="utf-8")
    found = read(tmp_path, tokenizer_config={"chat_template": "old"})
    assert found.chat_template == "Grüße {{ messages }}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "r"}], None),
        (["x", 5], None),
        ("", None),
        (None, None),
    ],
)
def test_template_of_the_tokenizer_config(template: object, expected: str | None, tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config={"chat_template": template}).chat_template == expected


@pytest.mark.parametrize("stem", ["generation_config", "tokenizer_config", "tokenizer"])
def test_damaged_file_is_named(stem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=rf"{stem}.json is no"):
        read(tmp_path, **{stem: "{"})


def test_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFilesError, match=r"chat_template.jinja cannot be read as UTF-8"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("tokenizer", "num_tokens"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}}, 2),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9, "content": "<x>"}]}, 10),
        ({"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": []}, 2),
    ],
)
def test_tokens_are_counted_to_the_largest_id(tokenizer: object, num_tokens: int, tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer=tokenizer).num_tokens == num_tokens


@pytest.mark.parametrize(("listed", "num_tokens"), [({"7": {}}, 8), ({"0": {}}, 2), ({"x": {}}, 2), ([9], 2)])
def test_tokens_that_the_tokenizer_config_adds_count(listed: object, num_tokens: int, tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}}
    config = {"added_tokens_decoder": listed}
    assert read(tmp_path, tokenizer=tokenizer, tokenizer_config=config).num_tokens == num_tokens


@pytest.mark.parametrize("tokenizer", [{}, {"model": {"vocab": {"a": "x"}}}, [1], {"model": 5}])
def test_tokenizer_of_another_form_is_refused(tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer.json is no tokenizer file"):
        read(tmp_path, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\n", "apache-2.0"),
        ('---\nlicense: "mit"\n---\n', "mit"),
        ("---\ntags: []\n---\nlicense: not here\n", None),
        ("# Model\nlicense: not here\n", None),
    ],
)
def test_licence_is_that_of_the_model_card(card: str, licence: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card)
    assert read(tmp_path).licence == licence


def test_files_that_are_there_are_listed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    found = read(tmp_path, generation_config={}, tokenizer_config={})
    assert [file.name for file in found.files] == ["generation_config.json", "tokenizer_config.json"]
