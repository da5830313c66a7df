"""A model that says what a test wants, asked in any dialect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from trivet.text.chat_template import ChatTemplate
from trivet.text.reasoning import FORMATS
from trivet.text.tool_calls.formats import format_of
from trivet_web.models.served_models import ServedModel

TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}<tool_call>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


@dataclasses.dataclass
class Speaker:
    """The client, and the text that the model will say."""

    client: FlaskClient
    file: Path
    token: str

    def post(self, path: str, says: str, **body: object) -> Any:
        self.file.write_text(says)
        return self.client.post(path, json=body)

    def ask(self, path: str, says: str, **body: object) -> dict[str, Any]:
        response = self.post(path, says, **body)
        assert response.status_code == 200, response.data
        return response.get_json()

    def lines(self, path: str, says: str, **body: object) -> list[dict[str, Any]]:
        response = self.post(path, says, **body)
        assert (response.status_code, response.mimetype) == (200, "application/x-ndjson"), response.data
        return [msgspec.json.decode(line) for line in response.data.splitlines()]

    def manage(self, method: str, path: str, **body: object) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.client.open(path, method=method, json=body, headers=headers)


@pytest.fixture(scope="module")
def speaking(
    tmp_path_factory: pytest.TempPathFactory, served_model: ServedModel, new_site: Any, open_client: Any
) -> Iterator[Callable[..., Speaker]]:
    """A site in which a model that thinks and calls tools speaks."""
    file = tmp_path_factory.mktemp("says") / "says"
    file.write_text("")
    with new_site() as site:
        site.start_engine("--says", str(file))

        def speak(**changes: object) -> Speaker:
            model = dataclasses.replace(
                served_model,
                **{
                    "template": ChatTemplate(TEMPLATE),
                    "template_takes_tools": True,
                    "tool_format": format_of(TEMPLATE),
                    "reasoning_format": FORMATS["qwen3"],
                    **changes,
                },
            )
            return Speaker(open_client(site, model), file, site.token)

        yield speak


@pytest.fixture(scope="module")
def speaker(speaking: Callable[..., Speaker]) -> Speaker:
    return speaking()


@pytest.fixture(scope="module")
def plain(speaking: Callable[..., Speaker]) -> Speaker:
    """A model that does not think."""
    return speaking(reasoning_format=None)
