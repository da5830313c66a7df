"""What grammars allow beside the keywords of a JSON Schema, and what they cost."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest
from grammar_texts import END, allowed, takes
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from trivet.engine import grammar as grammar_module
from trivet.engine.grammar import GrammarCompiler
from trivet.errors import RequestError, UnsupportedParameter
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.tokenizer import Tokenizer

INTEGER = {"type": "integer"}


def test_a_sentencepiece_vocabulary_serves_as_well() -> None:
    """As a GGUF file of a Llama brings it: bytes by name, spaces inside the words, no folder to read."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", '"', "{", "}", ":", "▁a", "▁ab", "é"]
    merges = [("▁", "a"), ("▁a", "b")]
    ids = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    small = Tokenizer(backend)
    compiler = GrammarCompiler(small, small.vocab_size, [ids["</s>"]])
    assert takes(compiler, small, "b ab ab", regex="b( ab)+")
    assert not takes(compiler, small, "b a", regex="b( ab)+")
    assert takes(compiler, small, '{"a": "é日"}', json={"type": "object"})
    grammar = compiler.compile(StructuredOutputsParams(regex="b( ab)+"))
    grammar.advance(ids["b"])
    assert np.flatnonzero(allowed(grammar, compiler)).tolist() == [ids["▁ab"]], (
        "forced text, in its own tokens"
    )


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"json": '{"type"'}, "structured_outputs.json is no valid JSON"),
        ({"json": "[" * 5000}, "structured_outputs.json is no valid JSON"),
        ({"json": "[1]"}, "structured_outputs.json is a JSON list"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": "root ::= missing"}, "structured_outputs.grammar is no EBNF: Rule 'missing' not found"),
        ({"grammar": "start: missing"}, "missing"),
    ],
)
def test_a_wrong_regex_or_grammar_is_refused_with_the_reason(
    compiler: GrammarCompiler, params: Any, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputsParams(**params))
    assert reason in str(caught.value)
    (kind,) = params
    assert caught.value.param == f"structured_outputs.{kind}"


@pytest.mark.parametrize(
    "params",
    [
        {"regex": r"[^\s\S]"},
        {"regex": r"(a[^\s\S])+b"},
        {"grammar": "start: /[^\\s\\S]/"},
        {"grammar": "start: C\nC: /a/ & /b/"},
    ],
)
def test_a_form_that_no_text_has_is_refused_with_a_sentence(compiler: GrammarCompiler, params: Any) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputsParams(**params))
    (kind,) = params
    assert str(caught.value) == (
        f"structured_outputs.{kind} matches no text that the model can write; allow at least one"
    )


def test_a_form_that_is_too_large_is_not_said_to_match_nothing(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "MAX_TOKEN_S", -1.0)  # any work is too much
    with pytest.raises(RequestError, match=r"regex cannot be carried out: it takes .* make it smaller"):
        compiler.compile(StructuredOutputsParams(regex="ab"))


@pytest.mark.parametrize(
    ("sent_as", "named"),
    [("", "structured_outputs.whitespace_pattern"), ("guided_json", "guided_whitespace_pattern")],
)
def test_a_wrong_pattern_of_blanks_is_named_by_itself(
    compiler: GrammarCompiler, sent_as: str, named: str
) -> None:
    form = StructuredOutputsParams(json={"type": "object"}, whitespace_pattern="(", sent_as=sent_as)
    with pytest.raises(RequestError, match="unclosed group") as caught:
        compiler.compile(form)
    assert caught.value.param == named
    assert str(caught.value).startswith(f"{named} cannot be carried out: ")


@pytest.mark.parametrize("name", ["response_format.json_schema.schema", "guided_json"])
def test_an_error_names_the_field_that_the_client_sent(compiler: GrammarCompiler, name: str) -> None:
    schema = {"properties": {"a": {"not": {}}}}
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputsParams(json=schema, sent_as=name))
    assert str(caught.value).startswith(f"{name} cannot be carried out at /properties/a: ")
    assert caught.value.param == name


def test_the_same_form_from_another_field_is_the_same_grammar(compiler: GrammarCompiler) -> None:
    assert compiler.cached(StructuredOutputsParams(regex="once")) is None
    compiler.compile(StructuredOutputsParams(regex="once"))
    assert compiler.cached(StructuredOutputsParams(regex="once", sent_as="guided_regex")) is not None


@pytest.mark.parametrize(
    ("params", "good", "bad"),
    [
        ({"regex": r"\d{3}-[a-c]+"}, ["123-abc"], ["12-a", "123-", "123-d", "x123-a"]),
        ({"regex": r"\d[\w/]\s"}, ["1a ", "1/\n"], ["\U0001fbf41 ", "1é ", "1a\u3000"]),
        ({"regex": "[\\x00-\u2e7f]+"}, ["any text", "é\n"], ["", "日本"]),
        ({"choice": ["Paris", "Par", 'a "b"\n|\\.*', "日本 #1", " x"]},
         ["Paris", "Par", 'a "b"\n|\\.*', "日本 #1", " x"], ["Pa", "P", "x", "aab", ""]),
        ({"grammar": 'root ::= num ("+" num)*\nnum ::= [0-9]+\n'}, ["1", "1+22"], ["+", "1+"]),
        ({"grammar": '?start: sum\nsum: NUM ("+" NUM)*\nNUM: /[0-9]+/\n'}, ["1", "1+22"], ["+", "1+"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"}']),
    ],
)  # fmt: skip
def test_other_forms_take_what_they_describe(
    compiler: GrammarCompiler, tokenizer: Tokenizer, params: Any, good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert takes(compiler, tokenizer, text, **params), text
    for text in bad:
        assert not takes(compiler, tokenizer, text, **params), text


@pytest.mark.parametrize(
    ("params", "good", "bad"),
    [
        ({}, ['{"a": 1}', '{"a":1}', '{\n  "a": 1,\n  "b": 2\n}', '{\n\t"a": 1\n}'],
         ['{"a":  1}', '{"a":\n\n1}']),
        ({"disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
        ({"whitespace_pattern": " {0,3}"}, ['{"a":   1}', '{"a":1}'], ['{"a":\n1}']),
    ],
)  # fmt: skip
def test_blanks_between_the_parts_of_json_are_bounded(
    compiler: GrammarCompiler, tokenizer: Tokenizer, params: Any, good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert takes(compiler, tokenizer, text, json={"type": "object"}, **params), text
    for text in bad:
        assert not takes(compiler, tokenizer, text, json={"type": "object"}, **params), text


def test_the_end_token_is_allowed_only_where_the_grammar_may_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(StructuredOutputsParams(regex="ab?"))
    assert not allowed(grammar, compiler)[END]
    (a, b) = (tokenizer.encode(text)[0] for text in "ab")
    grammar.advance(a)
    assert np.flatnonzero(allowed(grammar, compiler)).tolist() == sorted([END, b])
    assert not grammar.is_over
    grammar.advance(b)
    assert grammar.is_over
    assert not allowed(grammar, compiler)[list(tokenizer.special_ids - {END})].any()


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "(a?){5000}a{5000}"},
        {"regex": "(a|a)*b{1000}"},
        {"regex": "(.*a){20}"},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(.*)(.*)(.*)x{1,3000}.*[0-9]{500}"},
        {"grammar": 'root ::= "a" root | root root | "b" root | ""'},
        {"grammar": 'start: "a"{1,1000000}'},
        {"json": {"enum": [f"xxxxxxxxxx{n}" for n in range(50_000)]}},
        {"json": {"properties": {f"f{n}": {"enum": [f"v{n}_{k}" for k in range(20)]} for n in range(3000)}}},
        {"choice": [f"choice number {n}" for n in range(4000)]},
    ],
    ids=lambda params: str(params)[:40],
)
def test_a_catastrophic_grammar_is_refused_or_works_in_bounded_time(
    compiler: GrammarCompiler, params: Any
) -> None:
    """The bounds are the library's fuel, not time; 30 s is to find a hang, also on a busy machine."""
    begun_s = time.monotonic()
    try:
        grammar = compiler.compile(StructuredOutputsParams(**params))
    except RequestError:
        return
    for _ in range(30):
        choices = np.flatnonzero(allowed(grammar, compiler))
        if grammar.error:
            assert not choices.size, "in error nothing is allowed: the sequence ends with the reason"
            break
        if grammar.is_over:
            break
        grammar.advance(int(choices[-1]))
    assert time.monotonic() - begun_s < 30


def test_an_ambiguous_grammar_is_given_up_before_it_holds_up_a_step(compiler: GrammarCompiler) -> None:
    """Each of its tokens takes longer: 0.14 s for the 150th, beside the library's limits."""
    grammar = compiler.compile(StructuredOutputsParams(grammar='root ::= "a" root | root root | ""'))
    for _ in range(600):
        choices = np.flatnonzero(allowed(grammar, compiler))
        if grammar.error:
            break
        grammar.advance(int(choices[-1]))
    assert "ms for a token and 50 are allowed" in grammar.error
    assert not allowed(grammar, compiler).any()


def test_a_grammar_that_was_compiled_before_starts_anew(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    params = StructuredOutputsParams(choice=["yes", "no"])
    first = compiler.compile(params)
    first.advance(tokenizer.encode("yes")[0])
    assert first.is_over
    second = compiler.compile(params)
    assert not second.is_over
    assert allowed(second, compiler)[tokenizer.encode("no")[0]]


def test_what_is_kept_of_compiled_grammars_is_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "MAX_CACHED_BYTES", 1000)
    for number in range(50):
        compiler.compile(StructuredOutputsParams(regex=f"{number}" * 20))
    assert sum(map(len, compiler._cache)) <= 1000
    (*_, newest) = compiler._cache
    assert b"49" * 20 in newest, "the oldest go first"


def test_without_the_library_a_request_is_refused_with_what_to_install(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedParameter, match=r"pip install 'trivet\[structured\]'"):
        GrammarCompiler(tokenizer, 10, [END]).compile(StructuredOutputsParams(regex="a"))


def test_a_form_that_begins_after_a_token_leaves_free_what_comes_before(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    mark, word = tokenizer.encode("\n\n", add_special_tokens=False)[0], tokenizer.encode("so")[0]
    for _ in range(2):  # compiled, and from the cache
        grammar = compiler.compile(StructuredOutputsParams(json=INTEGER, begins_after=mark))
        for token_id in (word, word):
            free = allowed(grammar, compiler)
            assert free.sum() == compiler.num_tokens - 1
            assert not free[END], "it must not end before its form has begun"
            grammar.advance(token_id)
        grammar.advance(mark)
        assert not allowed(grammar, compiler)[word]
        assert allowed(grammar, compiler)[tokenizer.encode("1")[0]]
    assert not allowed(compiler.compile(StructuredOutputsParams(json=INTEGER)), compiler)[word]


UNLESS = "<tool_call>"


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ('{"a": 1}', True),
        ('<tool_call>\n{"any": "thing/\\"}\n</tool_call>\n<tool_call>', True),
        ("<tool_call>", True),
        ("<tool", False),
        ("Let me see", False),
        ('{"a": "x"}', False),
        ('{"a": 1} <tool_call>', False),
    ],
)
def test_a_form_of_json_may_be_left_by_a_call(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, is_good: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": INTEGER}}
    assert takes(compiler, tokenizer, text, json=schema, unless=UNLESS) is is_good


def test_a_schema_at_fault_is_told_by_its_place_there_too(compiler: GrammarCompiler) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}}
    with pytest.raises(RequestError, match="/properties/a"):
        compiler.compile(StructuredOutputsParams(json=wrong, unless=UNLESS))
