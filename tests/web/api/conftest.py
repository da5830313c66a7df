"""A model that says what a test wants, over the fake engine, with the chat template that it wants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from flask.testing import FlaskClient

from trivet.text.chat_template import ChatTemplate
from trivet.text.reasoning import FORMATS
from trivet.text.tool_calls.formats import format_of
from trivet_web.models.served_models import ServedModel

if TYPE_CHECKING:
    pass

# What the templates of models with tools have in common.
TOOL_TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}<tool_call>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
CHAT = "/v1/chat/completions"


@dataclasses.dataclass
class Speaker:
    """The client, and the text that the model will say."""

    client: FlaskClient
    file: Path

    def post(self, says: str, **fields: object) -> Any:
        self.file.write_text(says)
        body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], **fields}
        return self.client.post(CHAT, json=body)

    def ask(self, says: str, **fields: object) -> dict[str, Any]:
        response = self.post(says, **fields)
        assert response.status_code == 200, response.data
        return response.get_json()

    def choice(self, says: str, **fields: object) -> dict[str, Any]:
        (choice,) = self.ask(says, **fields)["choices"]
        return choice

    def events(self, says: str, **fields: object) -> list[dict[str, Any]]:
        """The chunks of a stream that ended well."""
        response = self.post(says, stream=True, **fields)
        assert response.status_code == 200, response.data
        lines = response.data.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.fixture(scope="module")
def speaking(
    tmp_path_factory: pytest.TempPathFactory, served_model: ServedModel, new_site: Any, open_client: Any
) -> Iterator[Callable[..., Speaker]]:
    """A site in which a model with this template speaks; one engine for all of a module."""
    file = tmp_path_factory.mktemp("says") / "says"
    file.write_text("")
    with new_site() as site:
        site.start_engine("--says", str(file))

        def speak(template: str = TOOL_TEMPLATE, **changes: object) -> Speaker:
            model = dataclasses.replace(
                served_model,
                **{
                    "template": ChatTemplate(template),
                    "template_takes_tools": "tools" in template,
                    "tool_format": format_of(template),
                    "reasoning_format": FORMATS["qwen3"],
                    **changes,
                },
            )
            return Speaker(open_client(site, model), file)

        yield speak


@pytest.fixture(scope="module")
def speaker(speaking: Callable[..., Speaker]) -> Speaker:
    return speaking()
