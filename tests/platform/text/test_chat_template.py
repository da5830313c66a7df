from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from chat_templates import CHATML, HEADERS, INST, TEMPLATES
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from trivet.errors import ModelFilesError, RequestError
from trivet.text.chat_template import ChatTemplate
from trivet.text.tokenizer import Tokenizer

Messages = list[dict[str, Any]]

TOOLS: Messages = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter für 城市 <b>&amp;</b> 'quoted'",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PLAIN: Messages = [
    {"role": "user", "content": "What is  1+1? 你好 <b>&</b> \n"},
    {"role": "assistant", "content": "  Two. 🙂 "},
    {"role": "user", "content": "And 2+2?"},
]
CALLED: Messages = [
    {"role": "user", "content": "Weather in 北京?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "北京"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": '{"t": 3}'},
]
SYSTEM: dict[str, Any] = {"role": "system", "content": " Be brief.\n"}
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def ours(source: str, messages: Messages, **settings: Any) -> str:
    fields = {name: settings.pop(name) for name in settings.keys() & ChatTemplate.RESERVED}
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: NOON)
    return template.render(messages, variables=settings, **fields)


def reference(source: str, messages: Messages, **settings: Any) -> str:
    rendered, _ = render_jinja_template(
        [messages], chat_template=source, bos_token="<s>", eos_token="</s>", **settings
    )
    text: str = rendered[0]
    return text


def refusal(source: str, messages: Messages | None = None, **settings: Any) -> str:
    with pytest.raises(RequestError) as caught:
        ours(source, messages or PLAIN, **settings)
    assert caught.value.param == "messages"
    return str(caught.value)


# ---- equal to the reference ----------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("with_system", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_as_transformers_does(
    name: str, add_generation_prompt: bool, with_system: bool, tools: Messages | None
) -> None:
    conversations = [PLAIN[:1], PLAIN]
    if name in ("chatml", "headers"):
        conversations.append(CALLED)
    for conversation in conversations:
        messages = [SYSTEM, *conversation] if with_system else conversation
        settings = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "date_string": "29 Nov 2026",
            "documents": [{"title": "one", "text": "1"}, {"title": "two", "text": "2"}],
            "enable_thinking": False,
        }
        assert ours(TEMPLATES[name], messages, **settings) == reference(TEMPLATES[name], messages, **settings)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["Two and", "Two and ", "  Two\n\n"])
def test_continues_the_last_message_as_transformers_does(name: str, content: str) -> None:
    messages = [PLAIN[0], {"role": "assistant", "content": content}]
    settings = {"continue_final_message": True, "date_string": "29 Nov 2026"}
    rendered = ours(TEMPLATES[name], messages, **settings)
    assert rendered == reference(TEMPLATES[name], messages, **settings)
    assert rendered.rstrip().endswith(content.rstrip().split()[-1])


@given(content=st.text(max_size=40), system=st.text(max_size=20))
def test_any_text_renders_as_transformers_does(content: str, system: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    for source in (CHATML, INST):
        assert ours(source, messages) == reference(source, messages, add_generation_prompt=True)


def test_date_comes_from_the_clock() -> None:
    assert "Today: 29 Nov 2026\n" in ours(HEADERS, PLAIN)


def test_the_demo_models_own_template_matches_its_tokens(smollm: Tokenizer) -> None:
    text = ours(CHATML, [{"role": "user", "content": "hi"}])
    ids = smollm.encode(text, add_special_tokens=False)
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert smollm.decode(ids, skip_special_tokens=False) == text


# ---- forms of messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("name", ["chatml", "headers", "turns"])
def test_text_parts_equal_the_same_text_as_a_string(role: str, name: str) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    whole = ours(TEMPLATES[name], [{"role": role, "content": "one two"}])
    assert "one two" in whole
    assert ours(TEMPLATES[name], [{"role": role, "content": parts}]) == whole


def test_part_that_is_no_text_is_refused_by_name() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    said = refusal(CHATML, [{"role": "user", "content": [part]}])
    assert "messages[0].content[0]" in said
    assert "'image_url'" in said


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "give at least one message"),
        ([{"content": "x"}], "messages[0].role is None"),
        ([{"role": 7, "content": "x"}], "messages[0].role is 7"),
        ([{"role": "user", "content": 7}], "messages[0].content is a int"),
        ([PLAIN[0], "text"], "messages[1] is a str"),
        ([{"role": "user", "content": [{"type": "text"}]}], "with the text None"),
    ],
)
def test_message_of_a_wrong_form_is_named(messages: Any, said: str) -> None:
    template = ChatTemplate(CHATML)
    with pytest.raises(RequestError) as caught:
        template.render(messages)
    assert said in str(caught.value)
    assert caught.value.param == "messages"


def test_nulls_of_client_libraries_are_as_if_absent() -> None:
    nulls = {"tool_calls": None, "name": None, "refusal": None, "function_call": None}
    messages = [PLAIN[0], {**PLAIN[1], **nulls}, PLAIN[2]]
    for source in TEMPLATES.values():
        assert ours(source, messages, date_string="x") == ours(source, PLAIN, date_string="x")


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_tool_call_without_content_renders(content: dict[str, Any]) -> None:
    call = {k: v for k, v in CALLED[1].items() if k != "content"} | content
    for source in (CHATML, HEADERS):
        rendered = ours(source, [CALLED[0], call, CALLED[2]], date_string="x")
        assert rendered == ours(source, CALLED, date_string="x")
        assert "None" not in rendered


def test_tool_message_with_null_content_and_several_system_messages_render() -> None:
    messages = [SYSTEM, SYSTEM, CALLED[0], CALLED[1], {**CALLED[2], "content": None}]
    assert ours(CHATML, messages).count("Be brief.") == 2


def test_null_content_stays_null_for_a_template_that_asks_for_it() -> None:
    source = (
        "{% for m in messages %}{% if m['content'] is none %}[none]{% else %}{{ m['content'] }}{% endif %}"
        "{% endfor %}"
    )
    assert ours(source, [PLAIN[2], {"role": "assistant", "content": None}]) == "And 2+2?[none]"


def test_null_content_is_empty_for_a_template_that_does_not_ask() -> None:
    assert ours("{{ '[' + messages[0]['content'] + ']' }}", [{"role": "assistant", "content": None}]) == "[]"


def test_arguments_given_as_json_text_become_values() -> None:
    as_text = [
        CALLED[0],
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "北京"}'},
                }
            ],
        },
        CALLED[2],
    ]
    assert ours(CHATML, as_text) == ours(CHATML, CALLED)


@pytest.mark.parametrize("arguments", ['{"city": "北', "plain words"])
def test_arguments_that_are_no_json_stay_text(arguments: str) -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert ours(source, [call]) == arguments


def test_template_that_concatenates_arguments_gets_them_as_text() -> None:
    source = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}"
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert ours(source, [call]) == 'call {"a": 1}'


def test_messages_of_the_caller_are_not_changed() -> None:
    messages = [PLAIN[0], {"role": "assistant", "content": None, "tool_calls": CALLED[1]["tool_calls"]}]
    before = repr(messages)
    ours(CHATML, messages)
    assert repr(messages) == before


def test_empty_tools_are_none() -> None:
    assert ours(CHATML, PLAIN, tools=[]) == ours(CHATML, PLAIN)


# ---- which template ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        {"default": "plain", "tool_use": "with tools"},
        [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "plain"}],
    ],
)
def test_named_templates_are_chosen_by_the_request(source: Any) -> None:
    template = ChatTemplate(source)
    assert template.render(PLAIN) == "plain"
    assert template.render(PLAIN, tools=TOOLS) == "with tools"


def test_a_single_named_template_serves_all() -> None:
    assert ChatTemplate({"rag": "only"}).render(PLAIN, tools=TOOLS) == "only"


def test_model_without_a_template_says_what_would_do() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*/v1/completions"):
        ChatTemplate(None).render(PLAIN)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x | nofilter }}", "{% for m in messages %}", "\n\n{{ 'a' "]
)
def test_template_that_is_no_jinja_is_refused_with_its_line(source: str) -> None:
    with pytest.raises(ModelFilesError, match=rf"line {source.count(chr(10)) + 1}"):
        ChatTemplate(source)


def test_list_of_templates_without_names_is_refused() -> None:
    with pytest.raises(ModelFilesError, match="lack name or template"):
        ChatTemplate([{"template": "x"}])


# ---- failures ------------------------------------------------------------------------------------


def test_refusal_is_in_the_templates_own_words() -> None:
    said = refusal(INST, [PLAIN[0], PLAIN[0]])
    assert "Conversation roles must alternate user/assistant/user/assistant/..." in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ messages[0].name.first }}", "'dict object' has no attribute 'name'"),
        ("one\n{{ messages[0].content + 1 }}", "in line 2"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[99].role }}", "has no element 99"),
        ("{% include 'other' %}", "no loader"),
        ("{{ messages | tojson(indent=-1) }}", "between 0 and 999"),
    ],
)
def test_failure_inside_a_template_is_a_request_error_in_its_words(source: str, said: str) -> None:
    assert said in refusal(source)


def test_settings_of_the_request_cannot_replace_what_render_gives() -> None:
    with pytest.raises(RequestError, match="must not set bos_token, messages") as caught:
        ChatTemplate(CHATML).render(PLAIN, variables={"messages": [], "bos_token": "x"})
    assert caught.value.param == "chat_template_kwargs"
    for name in ChatTemplate.RESERVED:
        with pytest.raises(RequestError, match=f"must not set {name};"):
            ChatTemplate(CHATML).render(PLAIN, variables={name: None})


@pytest.mark.parametrize("param", ["tools", "documents"])
@pytest.mark.parametrize("values", [7, "text", ["text"], {"a": 1}])
def test_tools_and_documents_must_be_objects(param: str, values: Any) -> None:
    with pytest.raises(RequestError, match="must be a list of objects") as caught:
        ChatTemplate(CHATML).render(PLAIN, **{param: values})
    assert caught.value.param == param


def test_nothing_to_continue_is_refused() -> None:
    assert "it has none" in refusal(CHATML, [PLAIN[0], {"role": "assistant"}], continue_final_message=True)


def test_template_that_drops_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(RequestError, match="cannot be continued"):
        ours("{{ messages[0].content }}", PLAIN, continue_final_message=True)


def test_threads_share_a_template() -> None:
    template = ChatTemplate(CHATML)
    expected = [template.render([{"role": "user", "content": f"n{i}"}]) for i in range(8)]
    results: dict[int, set[str]] = {i: set() for i in range(8)}

    def work(i: int) -> None:
        for _ in range(50):
            results[i].add(template.render([{"role": "user", "content": f"n{i}"}]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(8)] == [{text} for text in expected]
