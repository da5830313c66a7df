"""Every format: what models write, what comes close to it, and that the cut of a stream changes nothing."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trivet.engine_settings import TOOL_CALL_PARSERS
from trivet.text.answer_parser import AnswerParser, AnswerParts
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event
from trivet.text.tool_calls.formats import FORMATS, format_of

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "code": {"type": "string"}},
    },
    "now": {},
}
PARIS = {"city": 'Paris "x" {[ \\ 東京', "days": 3}
Parts = tuple[str, list[tuple[str, str]]]


def pushed(name: str, pieces: list[str]) -> list[Event]:
    parser = AnswerParser(None, FORMATS[name](TOOLS))
    events = [event for piece in pieces for event in parser.push(piece)]
    return events + parser.finish()


def joined(events: list[Event]) -> list[object]:
    """Neighbours of one kind as one: what is left to compare when streams are cut otherwise.

    Of a call that is broken the words are one with the text that follows: how much of its arguments has been
    told by then is a matter of the cut.
    """
    out: list[Any] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Content) and isinstance(last, Content):
            out[-1] = Content(last.text + event.text)
        elif isinstance(event, Content) and isinstance(last, CallBroken):
            out[-1] = CallBroken(last.index, last.source + event.text)
        elif isinstance(event, CallBroken) and isinstance(last, CallArguments):
            out[-1] = event
        elif (
            isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index
        ):
            out[-1] = CallArguments(last.index, last.text + event.text)
        else:
            out.append(event)
    return out


def parts(name: str, text: str) -> Parts:
    whole = AnswerParts()
    whole.add(pushed(name, [text]))
    return whole.content, [(call.name, call.arguments) for call in whole.calls]


def written(name: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """As a model of that format writes them."""
    dumped = [(call, json.dumps(arguments, ensure_ascii=False)) for call, arguments in calls]
    if name == "hermes":
        return "\n".join(
            f'<tool_call>\n{{"name": "{call}", "arguments": {arguments}}}\n</tool_call>'
            for call, arguments in dumped
        )
    if name == "llama3_json":
        return "; ".join(f'{{"name": "{call}", "parameters": {arguments}}}' for call, arguments in dumped)
    if name == "mistral":
        listed = ", ".join(f'{{"name": "{call}", "arguments": {arguments}}}' for call, arguments in dumped)
        return f"[TOOL_CALLS] [{listed}]"
    if name == "deepseek":
        listed = "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            for call, arguments in dumped
        )
        return f"<｜tool▁calls▁begin｜>{listed}<｜tool▁calls▁end｜>"
    if name == "glm":
        return "\n".join(
            f"<tool_call>{call}\n"
            + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
            + "</tool_call>"
            for call, arguments in calls
        )
    return "\n".join(
        f"<tool_call>\n<function={call}>\n"
        + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
        + "</function>\n</tool_call>"
        for call, arguments in calls
    )


OWN = ("hermes", "llama3_json", "mistral", "glm", "deepseek", "qwen3_coder")


@pytest.mark.parametrize("name", OWN)
def test_parallel_calls_are_read_and_their_arguments_parse(name: str) -> None:
    content, calls = parts(name, written(name, [("weather", PARIS), ("now", {})]))
    assert content == ""
    assert [(call, json.loads(arguments)) for call, arguments in calls] == [("weather", PARIS), ("now", {})]


@pytest.mark.parametrize("name", [name for name in OWN if name != "llama3_json"])
def test_text_before_and_after_calls_is_content_without_the_white_space_at_them(name: str) -> None:
    content, calls = parts(name, "Let me look.\n\n" + written(name, [("weather", PARIS)]) + "\n\nDone. ")
    assert (content, len(calls)) == ("Let me look.Done. ", 1)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    "text", ["", " ", "Hi", " a\n\n b \n", '{"city": "Paris"}', "<", "a < b", "[1]", "<tool"]
)
def test_text_without_a_call_is_unchanged(name: str, text: str) -> None:
    assert parts(name, text) == (text, [])


@pytest.mark.parametrize("name", OWN)
def test_arguments_come_before_the_call_has_ended(name: str) -> None:
    text = written(name, [("weather", {"city": "Paris", "days": 3})])
    cut = text.index("days") + len("days")
    parser = AnswerParser(None, FORMATS[name](TOOLS))
    begun = parser.push(text[:cut])
    assert CallStart(0, "weather") in begun
    assert "Paris" in "".join(event.text for event in begun if isinstance(event, CallArguments))


MALFORMED = [
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Par'),
    ("hermes", "<tool_call>\nweather(city)\n</tool_call>"),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "no json"}</tool_call>'),
    ("hermes", "<tool_call>"),
    ("llama3_json", '{"name": "weather"}'),
    ("llama3_json", '{"name": "unknown", "parameters": {}}'),
    ("llama3_json", '{"name": "weather", "parameters": {"city": "P'),
    ("llama3_json", '<|python_tag|>weather.call(city="Paris")'),
    ("mistral", "[TOOL_CALLS] weather in Paris"),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": ]'),
    ("mistral", "[TOOL_CALLS]weather[ARGS]Paris"),
    ("glm", "<tool_call>weather in Paris</tool_call>"),
    ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\nParis"),
    ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>P</arg_value> and so on</tool_call>"),
    ("qwen3_coder", "<function=weather>\n<parameter=city>\nP\n</parameter>\nand so on\n</function>"),
    ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{]```"),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis"),
    # What Python's json reads and JSON has not: an answer that holds it is no JSON to its client.
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "\\ud83d"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"\\ud800\\"}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>'),
    ("llama3_json", '{"name": "weather", "parameters": {"days": 1e999}}'),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"days": -Infinity}'),
]


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_malformed_call_is_content_as_it_was_written(name: str, text: str) -> None:
    content, calls = parts(name, text)
    assert calls == []
    assert "".join(content.split()) == "".join(text.split())


FORGIVEN = [
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "P"}</tool_call>'),  # a brace
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "P"}}'),  # the tag
    ("hermes", '<tool_call>{"arguments": {"city": "P"}, "name": "weather"}</tool_call>'),  # the order
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"P\\"}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "P"}}}</tool_call>'),  # a brace too many
    ("llama3_json", '[{"name": "weather", "parameters": {"city": "P"}}]'),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "P"}}'),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "P"}'),
    ("mistral", '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "P"}'),
    ("mistral", '[TOOL_CALLS]weather{"city": "P"}'),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "P"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
    ),
    ("glm", "<tool_call>weather<arg_key>city</arg_key><arg_value>P</arg_value></tool_call>"),
    ("qwen3_coder", "<function=weather>\n<parameter=city>\nP\n</parameter>\n</function>"),
]


@pytest.mark.parametrize(("name", "text"), FORGIVEN)
def test_other_ways_to_write_the_same_call_are_read(name: str, text: str) -> None:
    content, ((call, arguments),) = parts(name, text)
    assert (content, call, json.loads(arguments)) == ("", "weather", {"city": "P"})


def test_values_between_tags_are_text_where_the_schema_says_so_and_json_elsewhere() -> None:
    _, ((_, arguments),) = parts("glm", written("glm", [("weather", {"code": "007", "days": 3, "x": "y z"})]))
    assert json.loads(arguments) == {"code": "007", "days": 3, "x": "y z"}


ZIP = {
    "type": "object",
    "properties": {
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "listed": {"type": ["string", "null"]},
        "chosen": {"enum": ["1", "2", None]},
        "named": {"$ref": "#/$defs/Zip"},
        "mixed": {"type": ["string", "integer"]},
        "endless": {"$ref": "#/properties/endless"},
    },
    "$defs": {"Zip": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        *((key, "94107", "94107") for key in ("either", "listed", "named")),
        *((key, text, text) for key in ("either", "listed") for text in ("1e5", "true", "[1]", "")),
        *((key, "null", None) for key in ("either", "listed", "chosen")),
        ("chosen", "2", "2"),
        ("named", "null", "null"),
        ("mixed", "94107", 94107),
        *(("unknown", text, text) for text in ("NaN", "1e999", '"\\ud800"', "0123")),
        ("endless", "5", 5),
    ],
)
@pytest.mark.parametrize("name", ["glm", "qwen3_coder"])
def test_a_value_of_a_string_or_nothing_stays_as_it_is_written(
    name: str, key: str, text: str, value: object
) -> None:
    whole = AnswerParts()
    parser = AnswerParser(None, FORMATS[name]({"zip": ZIP}))
    whole.add(parser.push(written(name, [("zip", {key: text})])) + parser.finish())
    assert [json.loads(call.arguments) for call in whole.calls] == [{key: value}]


def test_a_call_that_breaks_takes_none_of_its_list_along() -> None:
    broken = '{"name": "weather", "arguments": {"ci'
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {"a": 1}}, ' + broken
    content, calls = parts("mistral", text)
    assert (content, calls) == (f", {broken}", [("now", "{}"), ("now", '{"a": 1}')])


def test_an_empty_list_of_calls_is_nothing() -> None:
    assert parts("mistral", "[TOOL_CALLS] [ ]") == ("", [])


def test_two_calls_as_a_list_or_with_a_comma_are_two() -> None:
    one = '{"name": "now", "parameters": {}}'
    for text in (f"[{one},{one}]", f"{one}, {one}", f"{one}; {one}"):
        assert parts("llama3_json", text) == ("", [("now", "{}")] * 2)


def test_held_white_space_costs_the_same_a_piece_however_much_is_held() -> None:
    parser = AnswerParser(None, FORMATS["hermes"](TOOLS))
    begun = time.process_time()
    for _ in range(400_000):  # 0.4 s; 40 s where each piece copies what is held
        parser.push(" ")
    assert parser.finish() == [Content(" " * 400_000)]
    assert time.process_time() - begun < 10


MARKS = """<tool_call> </tool_call> ; , { } [ ] " \\ : ```json text [TOOL_CALLS] [ARGS] <|python_tag|>
<｜tool▁call▁begin｜> <｜tool▁sep｜> function "parameters":{} <arg_key> </arg_key> <arg_value> <function=
<parameter= </parameter> </function> > weather {"city":"Paris"} {"name":"weather","arguments":"""
PIECES = st.one_of(
    st.sampled_from(["\n", " ", *MARKS.split()]),
    st.sampled_from([written(name, [("weather", PARIS)]) for name in OWN]),
    st.text(max_size=6),
)


@pytest.mark.parametrize("name", OWN)
@given(st.lists(PIECES, max_size=12).map("".join), st.data())
def test_any_cut_of_the_stream_gives_the_same(name: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = joined(pushed(name, [text]))
    assert joined(pushed(name, pieces)) == whole
    assert joined(pushed(name, list(text))) == whole


@pytest.mark.parametrize("name", OWN)
@given(st.lists(PIECES, max_size=12).map("".join))
@example('\n{"name":"weather","arguments":{"name":"weather","arguments":')
@example("<function=weather></function>\n```json")
def test_nothing_that_is_written_is_lost(name: str, text: str) -> None:
    """Content and names and arguments, or the call's own words, but for marks and white space."""
    content, calls = parts(name, text)
    if not calls:
        assert content == (re.sub(r"\[TOOL_CALLS]\s*\[\s*]", "", text) if name == "mistral" else text)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


def test_calls_beyond_the_limit_are_left_out() -> None:
    parser = AnswerParser(None, FORMATS["hermes"](TOOLS), max_calls=1)
    whole = AnswerParts()
    whole.add(parser.push(written("hermes", [("weather", PARIS), ("now", {})])) + parser.finish())
    assert [call.name for call in whole.calls] == ["weather"]


@pytest.mark.parametrize(
    ("sign", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<|python_tag|>", "llama3_json"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call> <arg_key>", "glm"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("<tool_call>\n<function=", "qwen3_coder"),
    ],
)
def test_format_is_known_by_the_template(sign: str, name: str) -> None:
    assert format_of(f"{{% for m in messages %}}{sign}") is FORMATS[name]
    assert format_of("{{ messages }}") is None


def test_the_settings_name_every_format() -> None:
    assert set(TOOL_CALL_PARSERS) == {"auto", "none", *FORMATS}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1}, "reason": "x"}</tool_call>'),
        ("llama3_json", '{"name": "now", "parameters": {"a": 1}, "reason": ["x"]}'),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": {"a": 1}, "why": {"b": 2}}]'),
    ],
)
def test_a_key_of_the_models_own_behind_complete_arguments_is_passed_over(name: str, text: str) -> None:
    assert parts(name, text) == ("", [("now", '{"a": 1}')])


def test_a_call_with_complete_arguments_is_told_once_whatever_breaks_behind_it() -> None:
    hermes = '<tool_call>{"name": "now", "arguments": {"a": 1}, oh no</tool_call> Bye'
    assert parts("hermes", hermes) == ("Bye", [("now", '{"a": 1}')])
    mistral = (
        '[TOOL_CALLS][{"name": "now", "arguments": {}, oh}, {"name": "weather", "arguments": {"days": 1}}]'
    )
    assert parts("mistral", mistral) == ("", [("now", "{}"), ("weather", '{"days": 1}')])
