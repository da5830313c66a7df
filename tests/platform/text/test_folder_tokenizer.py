from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from trivet.errors import ModelFilesError
from trivet.text.tokenizer import load_tokenizer

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path, byte_level: Callable[..., Backend]) -> Save:
    def write(config: dict[str, Any] | None = None, *, bos_by_processor: bool = False) -> Path:
        backend = byte_level()
        if bos_by_processor:
            backend.post_processor = TemplateProcessing(
                single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
            )
        backend.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write


def test_folder_gives_the_ids_that_transformers_gives(save: Save, texts: list[str]) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False},
        "added_tokens_decoder": {
            "601": {"content": "<tool_call>", "special": False, "normalized": False},
            "602": {"content": "<|eom|>", "special": True, "normalized": False, "rstrip": True},
        },
    }
    folder = save(config)
    ours = load_tokenizer(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in [*texts, "a<tool_call>{}</tool_call><|eom|>  \n b"]:
        assert ours.encode(text) == reference.encode(text), text
        ids = ours.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert (ours.bos_token, ours.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert ours.special_ids == set(reference.all_special_ids) | {0, 602}


@pytest.mark.parametrize(
    ("config", "bos_by_processor", "around"),
    [
        ({}, False, ([], [])),
        ({}, True, ([1], [])),
        ({"add_bos_token": True, "add_eos_token": True}, False, ([], [])),
        ({"add_bos_token": False}, True, ([1], [])),
    ],
)
def test_begin_and_end_tokens_follow_the_post_processor(
    save: Save, config: dict[str, Any], bos_by_processor: bool, around: tuple[list[int], list[int]]
) -> None:
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    folder = save({**ends, **config}, bos_by_processor=bos_by_processor)
    ours = load_tokenizer(folder)
    plain = ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == [*around[0], *plain, *around[1]]
    reference = PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_class=None)
    assert ours.encode("hello") == reference.encode("hello")


def test_folder_without_a_config_has_no_named_tokens(save: Save) -> None:
    ours = load_tokenizer(save())
    assert (ours.bos_token, ours.eos_token) == (None, None)


def test_names_may_stand_in_the_special_tokens_map(save: Save) -> None:
    folder = save({})
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert load_tokenizer(folder).eos_token == "<|im_end|>"


def test_named_token_that_the_vocabulary_lacks_gets_no_id(save: Save) -> None:
    ours = load_tokenizer(save({"pad_token": "<pad>"}))
    assert ours.id_of("<pad>") is None
    assert ours.vocab_size == 601


def test_named_token_of_the_plain_vocabulary_becomes_special(save: Save) -> None:
    ours = load_tokenizer(save({"eos_token": "a"}))
    assert ours.id_of("a") in ours.special_ids


def test_named_token_that_the_files_do_not_call_special_becomes_so(save: Save) -> None:
    folder = save({"eos_token": "<|im_end|>"})
    file = folder / "tokenizer.json"
    content = json.loads(file.read_bytes())
    (end,) = (token for token in content["added_tokens"] if token["content"] == "<|im_end|>")
    end |= {"special": False, "lstrip": True}
    file.write_text(json.dumps(content))
    ours = load_tokenizer(folder)
    ids = ours.encode("hello <|im_end|>")
    assert ids[-1] == end["id"]
    assert ours.decode(ids) == "hello", "the space goes with the token, as its lstrip says"
    reference = PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_class=None)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert ids == reference.encode("hello <|im_end|>")


@pytest.mark.parametrize("listed", [True, ["<x>"], {"a": {}}, {"601": "<x>"}, {"9" * 5000: {}}])
def test_damaged_list_of_added_tokens_is_refused(save: Save, listed: object) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer_config.json: added_tokens_decoder is .* fetch"):
        load_tokenizer(save({"added_tokens_decoder": listed}))


def test_config_of_another_model_is_refused(save: Save) -> None:
    folder = save({"added_tokens_decoder": {"9000": {"content": "<new>"}}})
    with pytest.raises(ModelFilesError, match=r"'<new>' the id 9000.*it gets 601"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": {"type": "Nope"}}'])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_file_that_cannot_be_read_is_named(save: Save, name: str, content: bytes) -> None:
    folder = save({})
    (folder / name).write_bytes(content)
    if name == "tokenizer_config.json" and content.startswith(b'{"'):
        load_tokenizer(folder)  # an object: it only says nothing of use
        return
    with pytest.raises(ModelFilesError, match=name):
        load_tokenizer(folder)


def test_folder_of_another_format_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelFilesError, match=r"tokenizer\.model and no tokenizer\.json.*save_pretrained"):
        load_tokenizer(tmp_path)


def test_folder_without_any_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"has no tokenizer\.json; fetch it"):
        load_tokenizer(tmp_path)
