"""Tools in chat completions: what the model writes becomes calls, streamed and not; what is wrong is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet.text.tool_calls.forced import MAX_CALLS
from trivet.text.tool_calls.mistral import MistralParser
from trivet_web.api.chat import ChatRequest

if TYPE_CHECKING:
    from conftest import Speaker

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
PARIS = '{"city": "Paris, \\"x\\""}'
TWO = (
    f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
NAMED = {"type": "function", "function": {"name": "weather"}}


def streamed(chunks: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Content, calls and reasons as a client puts them together."""
    content, calls, reasons = "", [], []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        content += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert delta["type"] == "function"
                calls.append({"id": delta["id"], "function": dict(delta["function"])})
                continue
            assert set(delta) == {"index", "function"}, "id and name come once"
            assert set(delta["function"]) == {"arguments"}
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return content, calls, reasons


def test_parallel_calls_of_a_whole_answer(speaker: Speaker) -> None:
    choice = speaker.choice(TWO, tools=TOOLS)
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "I look."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": PARIS},
        {"name": "now", "arguments": "{}"},
    ]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert speaker.choice(TWO.partition("\n")[2], tools=TOOLS)["message"]["content"] is None


def test_streamed_calls_join_to_the_same_with_one_reason(speaker: Speaker) -> None:
    content, calls, reasons = streamed(speaker.events(TWO, tools=TOOLS))
    assert (content, reasons) == ("I look.", ["tool_calls"])
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": PARIS},
        {"name": "now", "arguments": "{}"},
    ]


def test_arguments_come_in_several_deltas(speaker: Speaker) -> None:
    """In one of some answers: tokens that come together, on a busy machine, are one delta."""

    def num_deltas() -> int:
        chunks = speaker.events(TWO, tools=TOOLS)
        pieces = [d for chunk in chunks for d in chunk["choices"][0]["delta"].get("tool_calls", ())]
        return sum(piece["index"] == 0 for piece in pieces)

    assert any(num_deltas() > 4 for _ in range(20))


@pytest.mark.parametrize(("is_parallel", "limit"), [(None, MAX_CALLS), (True, MAX_CALLS), (False, 1)])
def test_the_grammar_holds_as_many_calls_as_are_wanted(is_parallel: bool | None, limit: int) -> None:
    asked = {"model": "demo", "messages": [], "tools": TOOLS, "tool_choice": "required"}
    body = msgspec.convert({**asked, "parallel_tool_calls": is_parallel}, ChatRequest)
    tools = body.tool_use()
    form = tools and tools.form()
    assert form
    schema = msgspec.json.decode(str(form.json))
    assert (schema["minItems"], schema["maxItems"]) == (1, limit)


def test_one_call_where_parallel_ones_are_not_wanted(speaker: Speaker) -> None:
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    assert len(speaker.choice(TWO, **fields)["message"]["tool_calls"]) == 1
    assert len(streamed(speaker.events(TWO, **fields))[1]) == 1


def test_malformed_call_is_content_and_no_error(speaker: Speaker) -> None:
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": }}\n</tool_call>'
    choice = speaker.choice(broken, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == (broken, "stop")
    assert "tool_calls" not in choice["message"]
    assert speaker.events(broken, tools=TOOLS)


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(speaker: Speaker, fields: dict[str, Any]) -> None:
    choice = speaker.choice(TWO, **fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == (TWO, "stop")


def test_tools_are_part_of_the_prompt_unless_none_may_be_used(speaker: Speaker) -> None:
    bare = speaker.ask("x")["usage"]["prompt_tokens"]
    with_tools = speaker.ask("x", tools=TOOLS)["usage"]["prompt_tokens"]
    assert with_tools > bare + 30
    assert speaker.ask("x", tools=TOOLS, tool_choice="none")["usage"]["prompt_tokens"] == bare


def test_a_named_tool_is_the_whole_answer(speaker: Speaker) -> None:
    choice = speaker.choice(PARIS, tools=TOOLS, tool_choice=NAMED)
    assert choice["finish_reason"] == "tool_calls"
    assert [c["function"] for c in choice["message"]["tool_calls"]] == [
        {"name": "weather", "arguments": PARIS}
    ]
    content, calls, reasons = streamed(speaker.events(PARIS, tools=TOOLS, tool_choice=NAMED))
    assert (content, reasons) == ("", ["tool_calls"])
    assert json.loads(calls[0]["function"]["arguments"]) == json.loads(PARIS)


def test_required_calls_are_a_list(speaker: Speaker) -> None:
    said = f'[{{"name": "weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]'
    calls = speaker.choice(said, tools=TOOLS, tool_choice="required")["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "now"]
    assert [
        c["function"] for c in streamed(speaker.events(said, tools=TOOLS, tool_choice="required"))[1]
    ] == [call["function"] for call in calls]


def test_allowed_tools_leave_some(speaker: Speaker) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    said = f'[{{"name": "weather", "arguments": {PARIS}}}]'
    assert speaker.choice(said, tools=TOOLS, tool_choice=choice)["finish_reason"] == "tool_calls"


def test_each_of_n_answers_has_its_own_calls(speaker: Speaker) -> None:
    choices = speaker.ask(TWO, tools=TOOLS, n=2)["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [2, 2]


def test_history_of_calls_is_rendered(speaker: Speaker) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": PARIS}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    short = speaker.ask("x", messages=messages[:1], tools=TOOLS)["usage"]["prompt_tokens"]
    assert speaker.ask("x", messages=messages, tools=TOOLS)["usage"]["prompt_tokens"] > short + 10


def test_ids_are_what_mistrals_templates_take(speaking: Callable[..., Speaker]) -> None:
    speaker = speaking(tool_format=MistralParser)
    said = f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS}}}]'
    (call,) = speaker.choice(said, tools=TOOLS)["message"]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


def test_template_without_tools_tells_them_in_the_system_message(speaking: Callable[..., Speaker]) -> None:
    plain = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    speaker = speaking(plain, tool_format=MistralParser)
    bare = speaker.ask("x")["usage"]["prompt_tokens"]
    assert speaker.ask("x", tools=TOOLS)["usage"]["prompt_tokens"] > bare + 100


def test_model_whose_way_to_call_is_unknown_is_told_so(speaking: Callable[..., Speaker]) -> None:
    speaker = speaking(tool_format=None)
    response = speaker.post("x", tools=TOOLS)
    error = response.get_json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools")
    assert "tool_call_parser" in error["message"]
    assert speaker.choice(PARIS, tools=TOOLS, tool_choice=NAMED)["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name", "twice"),
        ({"tools": [{"type": "function", "function": {"name": " "}}]}, "tools[0].function.name", "empty"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        ({"tools": [NOW] * 513}, "tools", "512"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "sometimes"),
        ({"tool_choice": "required"}, "tools", "no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function.name", "weather, now"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "'f'",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", "custom"),
        ({"tools": TOOLS, "tool_choice": NAMED, "guided_regex": "a"}, "guided_regex", "form"),
        ({"tools": "all"}, "tools", "array"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "bool"),
    ],
)
def test_what_is_wrong_is_named(speaker: Speaker, fields: dict[str, Any], param: str, words: str) -> None:
    response = speaker.post("x", **fields)
    error = response.get_json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


def test_history_of_the_older_form_is_the_same(speaker: Speaker) -> None:
    call = {"name": "weather", "arguments": PARIS}
    told = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x"}]
    older = [
        *told,
        {"role": "assistant", "function_call": call},
        {"role": "function", "name": "weather", "content": "s"},
    ]
    newer = [
        *told,
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": "s"},
    ]
    asked = [speaker.ask("x", messages=messages, tools=TOOLS)["usage"] for messages in (older, newer)]
    assert asked[0]["prompt_tokens"] == asked[1]["prompt_tokens"]
