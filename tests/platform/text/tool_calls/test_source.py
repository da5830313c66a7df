"""The reader of a stream: it waits for what decides, and for nothing else."""

from __future__ import annotations

import pytest

from trivet.text.tool_calls.source import Broken, Source, Steps


def finished(source: Source, steps: Steps[object]) -> object:
    """The result of a read for which everything is there."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def of(text: str, *, is_over: bool = False) -> Source:
    source = Source()
    source.add(text)
    source.is_over = is_over
    return source


def test_text_that_may_begin_a_mark_is_held_back_and_no_more() -> None:
    source, out = of("ab<to"), []
    steps = source.pass_until(("<tool>",), out.append)
    next(steps)
    assert out == ["ab"]
    source.add("p")
    next(steps)
    assert out == ["ab", "<top"]
    source.add("<tool>rest")
    assert finished(source, steps) == "<tool>"
    assert finished(source, source.starts_with("rest")) is True


def test_the_end_gives_back_what_was_held() -> None:
    out: list[str] = []
    source = of("x<to", is_over=True)
    assert finished(source, source.pass_until(("<tool>",), out.append)) == ""
    assert "".join(out) == "x<to"


@pytest.mark.parametrize("text", ['{"a": "}\\" {"}', '[1, {"b": []}]', "{}"])
def test_an_object_ends_at_its_own_bracket(text: str) -> None:
    source = of(text + "}]")
    out: list[str] = []
    assert finished(source, source.json_object(out.append)) == "".join(out) == text


@pytest.mark.parametrize("text", ["{]", '{"a" 1}', "{", '{"a": "'])
def test_what_is_no_json_breaks(text: str) -> None:
    source = of(text, is_over=True)
    with pytest.raises(Broken):
        finished(source, source.json_object(lambda piece: None))


@pytest.mark.parametrize(("text", "value"), [("12.5e3,", "12.5e3"), ("null}", "null"), ('"a\\n",', '"a\\n"')])
def test_a_value_is_read_as_it_is_written(text: str, value: str) -> None:
    source = of(text)
    assert finished(source, source.json_value()) == value


def test_what_was_read_can_be_had_back() -> None:
    source = of('{"a": 1} rest')
    source.keep("<mark>")
    finished(source, source.json_value())
    assert source.kept() == '<mark>{"a": 1}'
