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
    ("params", "param", "reason"),
    [
        ({}, "structured_outputs", "has none of them"),
        ({"json": {}, "regex": "a"}, "structured_outputs", "has json and regex; exactly one of"),
        ({"choice": []}, "structured_outputs.choice", "has 0 texts; give 1 to 4096"),
        ({"choice": ["a", ""]}, "structured_outputs.choice", "none of them empty"),
        ({"choice": ["a"] * 5000, "sent_as": "guided_choice"}, "guided_choice", "has 5000 texts"),
        ({"json": " " * (1 + MAX_JSON_BYTES)}, "structured_outputs.json", "has 1048577 characters"),
        ({"regex": "a" * (1 + MAX_GRAMMAR_BYTES)}, "structured_outputs.regex", "at most 65536 are taken"),
        ({"grammar": "a" * (1 + MAX_GRAMMAR_BYTES)}, "structured_outputs.grammar", "has"),
        (
            {"json": {}, "whitespace_pattern": "a" * (1 + MAX_GRAMMAR_BYTES), "sent_as": "guided_json"},
            "guided_whitespace_pattern",
            "at most",
        ),
    ],
)
def test_anything_else_is_refused_with_the_reason(params: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(structured_outputs=StructuredOutputsParams(**params)).check()
    assert str(caught.value).startswith(f"{param} ")
    assert reason in str(caught.value)
    assert caught.value.param == param


def test_it_crosses_the_wire() -> None:
    form = StructuredOutputsParams(choice=["a", "b"], whitespace_pattern=" ")
    sent = SamplingParams(structured_outputs=form, logit_bias={3: 1.5}, bad_words=("x",), n=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=SamplingParams) == sent


def test_a_dict_is_taken_for_a_form() -> None:
    params = SamplingParams(structured_outputs={"choice": ["yes", "no"]})  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputsParams(choice=["yes", "no"])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"chioce": ["yes"]}, "no field 'chioce'; its fields are json, regex, choice"),
        ({"choice": "yes"}, "Expected `array"),
    ],
)
def test_a_dict_that_is_no_form_is_refused(form: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(structured_outputs=form)  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"


def test_types_inside_a_form_are_checked() -> None:
    form = StructuredOutputsParams(choice="yes")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="structured_outputs") as caught:
        SamplingParams(structured_outputs=form).check_types()
    assert caught.value.param == "structured_outputs"
