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
    assert read(tmp_path) == Companions((), None, {}, {}, None, None, None, ())


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


@pytest.mark.parametrize(
    ("name", "value"), [("top_p", 7), ("temperature", -1), ("repetition_penalty", 0), ("top_k", -2)]
)
def test_sampling_default_that_no_request_may_have_is_refused(
    name: str, value: float, tmp_path: Path
) -> None:
    with pytest.raises(ModelFilesError, match=rf"generation_config.json: {name} is {value}; it must be"):
        read(tmp_path, generation_config={name: value})


def test_template_file_goes_before_the_tokenizer_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("Grüße {{ messages }}", encoding="utf-8")
    found = read(tmp_path, tokenizer_config={"chat_template": "old"})
    assert found.chat_templates == {"default": "Grüße {{ messages }}"}
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(name)
    found = read(tmp_path)
    assert found.chat_templates == {"default": "Grüße {{ messages }}", "tool_use": "tool_use"}
    assert tmp_path / "additional_chat_templates/tool_use.jinja" in found.files


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", {"default": "plain"}),
        (
            [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
            {"default": "d", "tool_use": "t"},
        ),
        ([{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}], {"tool_use": "t"}),
        ([{"name": "rag", "template": "r"}], {}),
        (["x", 5], {}),
        ("", {}),
        (None, {}),
    ],
)
def test_templates_of_the_tokenizer_config(
    template: object, expected: dict[str, str], tmp_path: Path
) -> None:
    assert read(tmp_path, tokenizer_config={"chat_template": template}).chat_templates == expected


TOKENIZERS = {
    "in the vocabulary": {"model": {"vocab": {"a": 0, "<end>": 3}}},
    "in a unigram's": {"model": {"vocab": [["a", 0.0], ["b", 0.0], ["c", 0.0], ["<end>", 0.0]]}},
    "added": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 3, "content": "<end>"}]},
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("stem", ["tokenizer_config", "special_tokens_map"])
@pytest.mark.parametrize("token", ["<end>", {"content": "<end>", "special": True}])
def test_the_tokenizers_own_end_token_ends_a_sequence_too(
    tokenizer: object, stem: str, token: object, tmp_path: Path
) -> None:
    """A model that was fine-tuned to chat may close its turns with it alone."""
    files = {"tokenizer": tokenizer, stem: {"eos_token": token}}
    assert read(tmp_path, {"eos_token_id": 0}, **files).eos_token_ids == (0, 3)


def test_an_end_token_that_only_the_tokenizers_config_adds_is_found(tmp_path: Path) -> None:
    config = {"eos_token": "<end>", "added_tokens_decoder": {"7": {"content": "<end>"}}}
    found = read(tmp_path, tokenizer={"model": {"vocab": {"a": 0}}}, tokenizer_config=config)
    assert (found.eos_token_ids, found.num_tokens) == ((7,), 8)


@pytest.mark.parametrize("token", ["<none>", None, 5, {"content": 5}])
def test_an_end_token_that_the_tokenizer_lacks_is_none(token: object, tmp_path: Path) -> None:
    found = read(tmp_path, tokenizer={"model": {"vocab": {"a": 0}}}, tokenizer_config={"eos_token": token})
    assert found.eos_token_ids == ()


def test_how_an_embedding_model_pools_goes_where_it_goes(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text("{}")
    names = [str(path.relative_to(tmp_path)) for path in read(tmp_path, modules=[]).files]
    assert names == ["modules.json", "1_Pooling/config.json"]


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
