"""What grammars allow of JSON Schema, keyword by keyword."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from grammar_texts import END, allowed, takes

from trivet.engine.grammar import GrammarCompiler
from trivet.errors import RequestError
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.tokenizer import Tokenizer

INTEGER, STRING, OBJECT = {"type": "integer"}, {"type": "string"}, {"type": "object"}
NODE = "#/$defs/n"

# Keyword → schema, texts that it takes, texts that it does not take.
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "type": ({"type": "integer"}, ["0", "-12"], ["1.5", '"1"', "01", "null"]),
    "type number": ({"type": "number"}, ["0", "-1.5e10", "3.25"], ["NaN", ".5", "1.", "+1"]),
    "type list": ({"type": ["string", "null"]}, ['"a"', "null"], ["1", "[]"]),
    "type boolean": ({"type": "boolean"}, ["true", "false"], ["True", "1", "null"]),
    "true": (True, ["1", "[]", '{"a": null}'], ["{", "nothing"]),
    "enum": ({"enum": ["a", 1, None, {"b": [2]}]}, ['"a"', "1", "null", '{"b": [2]}'], ['"b"', "2", "{}"]),
    "const": ({"const": {"a": "x"}}, ['{"a": "x"}', '{"a":"x"}'], ['{"a": "y"}', "{}"]),
    "minLength": ({"type": "string", "minLength": 2}, ['"ab"', '"日本"'], ['"a"', '""']),
    "maxLength": ({"type": "string", "maxLength": 2}, ['"ab"', '""', '"日本"'], ['"abc"']),
    "pattern": ({"type": "string", "pattern": "b+"}, ['"b"', '"abba"'], ['"aa"', '""']),
    "pattern anchored": ({"type": "string", "pattern": "^[a-z]{2}$"}, ['"ab"'], ['"abc"', '"A"']),
    "format date": ({"type": "string", "format": "date"}, ['"2026-11-30"'], ['"2026-13-30"', '"today"']),
    "format uuid": (
        {"type": "string", "format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"123"', '"123e4567e89b12d3a456426614174000"'],
    ),
    "minimum": ({"type": "integer", "minimum": 5}, ["5", "123"], ["4", "-5"]),
    "maximum": ({"type": "number", "maximum": 1.5}, ["1.5", "-3", "0.25"], ["1.6", "2"]),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 5}, ["6"], ["5"]),
    "exclusiveMaximum": ({"type": "integer", "minimum": 0, "exclusiveMaximum": 5}, ["4", "0"], ["5", "-1"]),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, ["0", "9", "-12"], ["1", "10"]),
    "properties": (
        {"properties": {"a": {"type": "null"}}, "type": "object"}, ['{"a": null}', "{}"], ['{"a": 1}']
    ),
    "required": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
        ['{"a": 1}', '{"a": 1, "b": [2]}'],
        ["{}", '{"b": 1}'],
    ),
    "additionalProperties false": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        ['{"a": 1}', "{}"],
        ['{"b": 1}', '{"a": 1, "b": 2}'],
    ),
    "additionalProperties schema": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ['{"x": 1, "y": 2}', "{}"],
        ['{"x": "1"}'],
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": False},
        ['{"n1": 1}', "{}"],
        ['{"n1": "a"}', '{"m": 1}'],
    ),
    "minProperties": ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, ['{"a": 1}', "{}"], ['{"a": 1, "b": 2}']),
    "items": ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1, 2]"], ['["a"]', "[1,]"]),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        ['["a", 1]'],
        ['[1, "a"]', '["a", 1, 2]'],
    ),
    "minItems": ({"type": "array", "minItems": 2}, ["[1, 2]"], ["[1]", "[]"]),
    "maxItems": ({"type": "array", "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"const": "x"}]}, ["3", '"x"'], ['"y"', "null"]),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["3", '"y"'], ["null"]),
    "oneOf by a constant": (
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}, "x": INTEGER}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}, "y": STRING}, "required": ["k"]},
            ]
        },
        ['{"k": "a", "x": 1}', '{"k": "b", "y": "z"}'],
        ['{"k": "a", "x": "1"}', '{"k": "c"}'],
    ),
    "allOf": (
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        ['{"a": 1}'],
        ["{}", '{"a": "1"}'],
    ),
    "$ref": (
        {
            "$defs": {"n": {**OBJECT, "properties": {"k": {"$ref": NODE}}, "additionalProperties": False}},
            "$ref": NODE,
        },
        ["{}", '{"k": {"k": {}}}'],
        ['{"k": 1}', '{"j": {}}'],
    ),
    "definitions": (
        {"definitions": {"i": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/definitions/i"}},
        ["[1]"],
        ['["a"]'],
    ),
    "annotations": (
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "description": "d",
         "default": 3, "examples": [4], "type": "integer", "no_such_keyword": 1},
        ["5"],
        ['"a"'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("keyword", CASES)
def test_a_json_schema_keyword_takes_what_is_valid_and_nothing_else(
    compiler: GrammarCompiler, tokenizer: Tokenizer, keyword: str
) -> None:
    schema, good, bad = CASES[keyword]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for text in good:
        validator.validate(json.loads(text))
        assert takes(compiler, tokenizer, text, json=schema), f"{text} is valid"
    for text in bad:
        assert not takes(compiler, tokenizer, text, json=schema), f"{text} is not valid"


@pytest.mark.parametrize("keyword", CASES)
def test_whatever_is_drawn_is_valid(compiler: GrammarCompiler, tokenizer: Tokenizer, keyword: str) -> None:
    """Random walks over the allowed tokens: the worst model there is."""
    schema = CASES[keyword][0]
    validator = jsonschema.Draft202012Validator(schema)
    closing = np.array([tokenizer.token_bytes[t] in (b'"', b"}", b"]") for t in range(tokenizer.vocab_size)])
    num_ended = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        grammar, ids = compiler.compile(StructuredOutputsParams(json=schema)), []
        while not grammar.is_over and len(ids) < 60:
            may = allowed(grammar, compiler)
            assert may.any()
            if may[END] and rng.random() < 0.5:
                break
            may[END] = False
            few = may & closing
            token = int(rng.choice(np.flatnonzero(few if few.any() and rng.random() < 0.4 else may)))
            grammar.advance(token)
            ids.append(token)
        if grammar.is_over or allowed(grammar, compiler)[END]:
            num_ended += 1
            validator.validate(json.loads(tokenizer.decode(ids)))
    assert num_ended


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2026-11-30T12:00:00Z", "2026-11-30"),
        ("date", "2026-11-30", "2026-13-30"),
        ("time", "12:00:00Z", "25:00:00Z"),
        ("duration", "P1DT2H", "1 day"),
        ("email", "a@b.org", "a"),
        ("hostname", "example.org", "-a-"),
        ("ipv4", "10.0.0.1", "10.0.0.256"),
        ("ipv6", "::1", "1:2"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("uri", "http://example.org/b", "not a uri"),
    ],
)
def test_a_format_is_kept_to(
    compiler: GrammarCompiler, tokenizer: Tokenizer, name: str, good: str, bad: str
) -> None:
    schema = {"type": "string", "format": name}
    assert takes(compiler, tokenizer, json.dumps(good), json=schema)
    assert not takes(compiler, tokenizer, json.dumps(bad), json=schema)


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"not": {}}, "its root", '"not"'),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "/properties/a/items", '"uniqueItems"'),
        ({"$defs": {"x/y": {"contains": {}}}, "$ref": "#/$defs/x~1y"}, "/$defs/x~1y", '"contains"'),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, "/anyOf/1", '"if"'),
        ({"prefixItems": [{"format": "colour"}]}, "/prefixItems/0", "colour"),
        ({"properties": {"a": {"type": "strin"}}}, "/properties/a", "strin"),
        ({"properties": {"a": {"pattern": "(?=b)"}}}, "/properties/a", "look-ahead"),
        ({"items": {"$ref": "#/$defs/no"}}, "/items", "'/$defs/no' does not exist"),
        ({"items": {"$ref": "http://example.org/s"}}, "/items", "example.org"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "its root", "minimum (5)"),
        ({"properties": {"a": {"minLength": "2"}}}, "/properties/a", "minLength"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "its root", "oneOf"),
        (False, "its root", "false"),
        ({"properties": {"a": 5}}, "/properties/a", "an object or boolean"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "its root", '"not"'),
    ],
)
def test_a_schema_that_cannot_be_carried_out_is_refused_by_pointer_and_keyword(
    compiler: GrammarCompiler, schema: Any, pointer: str, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputsParams(json=schema))
    assert f"structured_outputs.json cannot be carried out at {pointer}: " in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("depth", [200, 64])
def test_a_schema_that_the_library_does_not_read_is_refused(compiler: GrammarCompiler, depth: int) -> None:
    # Its ValueError ended the compiling thread: this request and all behind it waited for 10 s.
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    with pytest.raises(RequestError, match="json cannot be read as a JSON Schema: recursion limit exceeded"):
        compiler.compile(StructuredOutputsParams(json=schema))
    with pytest.raises(RequestError, match="cannot be read as a JSON Schema: number out of range"):
        compiler.compile(StructuredOutputsParams(json=f'{{"type": "integer", "maximum": {"9" * 400}}}'))
