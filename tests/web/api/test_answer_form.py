"""What a request's tools and a model's thinking ask of the sampling; what a deployment's settings decide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.chat_template import ChatTemplate
from trivet.text.reasoning import FORMATS
from trivet.text.tool_calls.hermes import HermesParser
from trivet.text.tool_calls.mistral import MistralParser
from trivet_registry.deployments_store import get_deployment
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.inference import Target
from trivet_web.api.tools import FunctionDefinition, ToolUse
from trivet_web.engines.routing import Deployed
from trivet_web.models.served_models import ServedModel

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

THINK, END, CALLS, TEXT = 7, 8, 9, 10
CHAT = "/v1/chat/completions"
THINKING = "<|im_start|>assistant\n<think>\n"


class MarkTokenizer:
    """Marks that are tokens; one of them is a special one."""

    special_ids = frozenset({CALLS})

    def id_of(self, token: str) -> int | None:
        return {"<think>": THINK, "</think>": END, "[TOOL_CALLS]": CALLS, "[ARGS]": TEXT}.get(token)


def form(model: ServedModel, choice: Any = None) -> AnswerForm:
    model = dataclasses.replace(
        model,
        tokenizer=MarkTokenizer(),  # type: ignore[arg-type]
        tool_format=MistralParser,
        reasoning_format=FORMATS["qwen3"],
    )
    target = Target(Deployed("m", "", 0), model)
    tools = None if choice is None else ToolUse({"f": FunctionDefinition(name="f")}, choice, True)
    return AnswerForm.of(target, tools)


def test_marks_that_are_special_tokens_are_shown(served_model: ServedModel) -> None:
    assert form(served_model, "auto").params(SamplingParams(), "").visible_token_ids == (CALLS,)
    assert form(served_model).params(SamplingParams(), "").visible_token_ids == ()


@pytest.mark.parametrize("prompt", ["<|im_start|>assistant\n", THINKING])
def test_a_form_begins_after_the_thinking_that_the_prompt_begins(
    served_model: ServedModel, prompt: str
) -> None:
    begins_after = END if prompt == THINKING else None
    for choice in ("named", "required"):
        forced = form(served_model, choice).params(SamplingParams(), prompt).structured_outputs
        assert forced is not None
        assert (forced.begins_after, forced.field) == (begins_after, "tools")
    asked = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    kept = form(served_model).params(asked, prompt).structured_outputs
    assert kept is not None
    assert (kept.regex, kept.begins_after) == ("a", begins_after)


def test_calls_go_before_the_form_of_an_answer(served_model: ServedModel) -> None:
    asked = StructuredOutputsParams(json_object=True, sent_as="response_format")
    chosen = form(served_model, "named").params(SamplingParams(structured_outputs=asked), "")
    assert chosen.structured_outputs is not None
    assert chosen.structured_outputs.field == "tools"


@pytest.fixture
def set_up(
    site: Site, open_client: Callable[..., FlaskClient], served_model: ServedModel
) -> Callable[..., FlaskClient]:
    def serve(**settings: str) -> FlaskClient:
        with site.database.session() as session:
            get_deployment(session, "demo").settings = settings
        site.start_engine()
        model = dataclasses.replace(served_model, template=ChatTemplate("{{ messages[0].content }}<think>"))
        return open_client(site, model)

    return serve


def ask(client: FlaskClient, **fields: object) -> Any:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}
    return client.post(CHAT, json=body)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "content"),
        ({"reasoning_parser": "qwen3"}, "reasoning"),
        ({"reasoning_parser": "none"}, "content"),
    ],
)
def test_a_deployment_says_how_its_model_thinks(
    set_up: Callable[..., FlaskClient], settings: dict[str, str], name: str
) -> None:
    message = ask(set_up(**settings)).get_json()["choices"][0]["message"]
    assert message[name] == "w0 w1" if name == "reasoning" else message[name] == "w0 w1 "


def test_a_deployment_says_how_its_model_calls(set_up: Callable[..., FlaskClient]) -> None:
    response = ask(set_up(tool_call_parser="none"), tools=[{"type": "function", "function": {"name": "f"}}])
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, "tools")


def test_a_template_of_the_request_is_taken_where_the_deployment_says_so(
    set_up: Callable[..., FlaskClient],
) -> None:
    client = set_up(trust_request_chat_template="true")
    for template, count in (("a", 1), ("a b c d", 4)):
        assert ask(client, chat_template=template).get_json()["usage"]["prompt_tokens"] == count
    for wrong, words in (
        ("{% if %}", "Jinja"),
        ("x" * 70_000, "characters"),
        ("{{ 'a' * 10 ** 9 }}", "template"),
        ("{% for i in range(99999) %}" * 2 + "{% endfor %}" * 2, "more than 500000 loop turns"),
    ):
        response = ask(client, chat_template=wrong)
        error = response.get_json()["error"]
        assert (response.status_code, error["param"] in ("chat_template", "messages")) == (400, True), error
        assert words in error["message"]


def test_an_answer_of_a_form_leaves_room_for_calls(served_model: ServedModel) -> None:
    def unless(choice: Any, asked: StructuredOutputsParams, **changes: Any) -> str:
        chosen = dataclasses.replace(form(served_model, choice), **changes)
        params = chosen.params(SamplingParams(structured_outputs=asked), "")
        assert params.structured_outputs is not None
        return params.structured_outputs.unless

    json_form = StructuredOutputsParams(json_object=True, sent_as="response_format")
    hermes = {"make_tool_parser": HermesParser}
    assert unless("auto", json_form, **hermes) == "<tool_call>"
    assert unless("auto", StructuredOutputsParams(regex="a"), **hermes) == ""
    assert unless(None, json_form) == ""
    assert unless("auto", json_form) == "", "a special token is no text of a grammar"
