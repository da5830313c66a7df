"""What a request may ask of a completion's form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import MAX_GRAMMAR_BYTES, MAX_JSON_BYTES, StructuredOutputsParams


@pytest.mark.parametrize(
    "params",
    [
        {"json": {"type": "object"}},
        {"json": '{"type": "object"}'},
        {"json": True},
        {"json": False},
        {"regex": "a"},
        {"choice": ["a"]},
        {"grammar": "start: 'a'"},
        {"json_object": True},
        {"json": {}, "json_object": False, "disable_any_whitespace": True},
    ],
)
def test_one_form_is_taken(params: dict[str, Any]) -> None:
    SamplingParams(structured_outputs=StructuredOutputsParams(**params)).check()


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({}, "give none of them"),
        ({"json": {}, "regex": "a"}, "give json and regex; exactly one of"),
        ({"choice": []}, "choice has 0 texts"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": ["a"] * 5000}, "choice has 5000 texts; give 1 to 4096"),
        ({"json": " " * (MAX_JSON_BYTES + 1)}, f"json has {MAX_JSON_BYTES + 1} characters"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, f"at most {MAX_GRAMMAR_BYTES} are taken"),
        ({"grammar": "a" * (MAX_GRAMMAR_BYTES + 1)}, "grammar has"),
    ],
)
def test_anything_else_is_refused_with_the_reason(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match="structured_outputs: ") as caught:
        SamplingParams(structured_outputs=StructuredOutputsParams(**params)).check()
    assert reason in str(caught.value)
    assert caught.value.param == "structured_outputs"


def test_it_crosses_the_wire() -> None:
    form = StructuredOutputsParams(choice=["a", "b"], whitespace_pattern=" ")
    sent = SamplingParams(structured_outputs=form, logit_bias={3: 1.5}, bad_words=("x",), n=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams) == sent
