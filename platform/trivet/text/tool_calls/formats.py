"""The formats by name, and which one a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.text.tool_calls.deepseek import BEGIN as DEEPSEEK_BEGIN
from trivet.text.tool_calls.deepseek import DeepSeekParser
from trivet.text.tool_calls.glm import KEY as GLM_KEY
from trivet.text.tool_calls.glm import GlmParser
from trivet.text.tool_calls.hermes import BEGIN as HERMES_BEGIN
from trivet.text.tool_calls.hermes import HermesParser
from trivet.text.tool_calls.llama3_json import Llama3JsonParser
from trivet.text.tool_calls.mistral import BEGIN as MISTRAL_BEGIN
from trivet.text.tool_calls.mistral import MistralParser
from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.qwen3_coder import FUNCTION as CODER_FUNCTION
from trivet.text.tool_calls.qwen3_coder import Qwen3CoderParser

# The first names are ours; the others are what peers call the same.
FORMATS: Mapping[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "glm": GlmParser,
    "deepseek": DeepSeekParser,
    "qwen3_coder": Qwen3CoderParser,
    "qwen": HermesParser,
    "glm45": GlmParser,
    "deepseek_v3": DeepSeekParser,
    "deepseek_v31": DeepSeekParser,
}

# What only a template for that format has in it; the first that fits counts.
_SIGNS: tuple[tuple[str, type[ToolParser]], ...] = (
    (DEEPSEEK_BEGIN, DeepSeekParser),
    (GLM_KEY, GlmParser),
    (MISTRAL_BEGIN, MistralParser),
    (CODER_FUNCTION, Qwen3CoderParser),
    (HERMES_BEGIN, HermesParser),
    ("<|python_tag|>", Llama3JsonParser),
    ('"parameters": dictionary of argument name', Llama3JsonParser),
)


def format_of(template: str) -> type[ToolParser] | None:
    """By the model's chat template; None where it has no tools, or none that we know."""
    return next((parser for sign, parser in _SIGNS if sign in template), None)
