"""The body of `/v1/messages`, and the chat request that it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.chat import ChatRequest
from trivet_web.api.sampling_fields import Integer
from trivet_web.api.structured_fields import JsonSchemaFormat, ResponseFormat
from trivet_web.api.tools import FunctionDefinition, FunctionName, Tool, ToolChoice
from trivet_web.dialects.anthropic.content import Block, Turn, messages_of

MESSAGES_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "container": (),
    "context_management": ({},),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
}
# `betas` name features, each of which has fields of its own.
MESSAGES_WITHOUT_EFFECT = frozenset({"metadata", "cache_control", "diagnostics", "betas"})
# How an error of the chat names what this request names otherwise.
NAMES = {"stop": "stop_sequences"}
_FORM = "response_format.json_schema.schema"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ToolObject(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    type: str | None = None  # None: custom
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None  # changes nothing: a call that is required always keeps to its schema


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it shall call one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it shall think. What it may think is bounded by max_tokens alone."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Integer | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer shall be written."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """What makes a prompt."""

    model: str
    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[ToolObject] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # what `output_config.format` was called first

    def chat(self, **fields: Any) -> ChatRequest:
        """As a chat, with `fields` of its own. Raises: RequestError, UnsupportedParameter."""
        return ChatRequest(
            model=self.model,
            messages=messages_of(self.system, self.messages),
            tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools or [])],
            tool_choice=self._choice(),
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
            # An answer that the request began: the model goes on with it.
            continue_final_message=self.messages[-1].role == "assistant",
            chat_template_kwargs={"enable_thinking": self.thinks, "thinking": self.thinks},
            reasoning_effort=self.output_config.effort if self.output_config else None,
            **fields,
        )

    @property
    def names(self) -> dict[str, str]:
        """How an error of the chat names what this request names otherwise."""
        form = "output_config.format" if self.output_format is None else "output_format"
        return {**NAMES, _FORM: f"{form}.schema", "response_format": form}

    @property
    def form(self) -> OutputFormat | None:
        """Of the answer. Raises: RequestError for two that differ."""
        newer = self.output_config.format if self.output_config else None
        if newer is not None and self.output_format not in (None, newer):
            raise RequestError(
                "output_format and output_config.format differ; send output_config.format alone",
                param="output_format",
            )
        return newer or self.output_format

    @property
    def thinks(self) -> bool:
        """Anthropic's models think where they are told to."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def _choice(self) -> str | ToolChoice | None:
        choice = self.tool_choice
        if choice is None:
            return None
        if choice.type != "tool":
            return _CHOICES[choice.type]
        if choice.name is None:
            raise RequestError(
                "tool_choice is of type tool and has no name; name a tool", param="tool_choice"
            )
        return ToolChoice(type="function", function=FunctionName(name=choice.name))


class MessageRequest(CountRequest, kw_only=True):
    """What is read of the body."""

    max_tokens: Integer
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None

    def completion(self) -> ChatRequest:
        """The same as a chat. Raises: RequestError, UnsupportedParameter."""
        if self.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens}; it must be an integer >= 1", param="max_tokens"
            )
        form = self.form
        return self.chat(
            max_tokens=self.max_tokens,
            stream=self.stream,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            response_format=None
            if form is None
            else ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema)),
        )


def _tool(tool: ToolObject, place: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise UnsupportedParameter(
            f"{place}.type is {tool.type!r}; this version has no tools of its own: describe yours with name "
            "and input_schema",
            param=f"{place}.type",
        )
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool(type="function", function=function)
