"""What the tokenizers library raises for a stranger's file, panics included, is told as a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trivet.errors import ModelFilesError
from trivet.text.tokenizer import load_tokenizer

WORDS: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "[UNK]"},
}
LACKING: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("content", "text"),
    [(WORDS, "a word that it lacks"), ({**WORDS, "post_processor": LACKING}, "a b")],
    ids=["an exception", "a panic"],
)
def test_a_text_that_the_library_cannot_read_is_told(
    tmp_path: Path, content: dict[str, Any], text: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(
        ModelFilesError, match=r"the model's tokenizer cannot read this text: .*; fetch the model"
    ):
        tokenizer.encode(text)
    assert tokenizer.decode([0, 1])
