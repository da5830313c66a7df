"""The body of `/v1/responses`, and the chat request that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.chat import ChatRequest
from trivet_web.api.conversation import Message
from trivet_web.api.model_fields import AdapterFields
from trivet_web.api.responses_input import InputItem, messages_of, stored_items
from trivet_web.api.responses_objects import StoredItem
from trivet_web.api.sampling_fields import UNSUPPORTED, Integer, SamplingFields
from trivet_web.api.structured_fields import JsonSchemaFormat, ResponseFormat
from trivet_web.api.tools import AllowedTools, FunctionDefinition, FunctionName, NamedTool, Tool, ToolChoice

RESPONSES_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    **{name: neutral for name, neutral in UNSUPPORTED.items() if name != "store"},
    "background": (False,),
    "background_options": (),
    "access_programs": ([],),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "truncation": ("disabled",),
    # Chats have them.
    "n": (1,),
    "max_tokens": (),
    "max_completion_tokens": (),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "messages": (),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
    # vLLM's.
    "request_id": (),  # the id of a stored response is nobody's to choose
    "enable_response_messages": (False,),
    "previous_input_messages": ([],),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "ec_transfer_params": ({},),
}
RESPONSES_WITHOUT_EFFECT = frozenset(
    {
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "safety_identifier"),
        "spaces_between_special_tokens",  # as in a chat
        "stream_options",  # their one field, obfuscation, hides lengths from listeners
    }
)
LOGPROBS = "message.output_text.logprobs"
# Thinking is given as it is: there is nothing to encrypt.
_INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
# How an error of the chat names what this request names otherwise.
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools, or some of them."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[ResponseTool] | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer shall be written."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much shall be thought. A summary is not made: the thinking itself is there."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # what it was called first


class ResponseRequest(SamplingFields, kw_only=True):
    """What is read of the body."""

    input: str | list[InputItem]
    instructions: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    max_output_tokens: Integer | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: list[str] | None = None
    top_logprobs: Integer | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises: RequestError, UnsupportedParameter."""
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise RequestError(
                f"max_output_tokens is {self.max_output_tokens}; it must be an integer >= 1",
                param="max_output_tokens",
            )
        super().check()
        if self.response_format is not None:
            raise UnsupportedParameter(
                "response_format is a field of chats; send it as text.format", param="response_format"
            )
        for name in self.include or []:
            if name not in _INCLUDED:
                raise UnsupportedParameter(
                    f"include has {name[:80]!r}; this version adds {LOGPROBS} only", param="include"
                )
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise UnsupportedParameter(
                f"text.verbosity is {self.text.verbosity!r}; this version does not carry it out: leave it "
                "out",
                param="text.verbosity",
            )

    def chat(self, before: Sequence[Message]) -> ChatRequest:
        """The same as a chat. Args: before: the conversation that this request goes on with.

        Raises: RequestError, UnsupportedParameter.
        """
        told = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        shared = {name: getattr(self, name) for name in SamplingFields.__struct_fields__}
        return ChatRequest(
            **{**shared, "response_format": self._format()},
            messages=[*told, *before, *messages_of(self.input)],
            max_completion_tokens=self.max_output_tokens,
            tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools or [])],
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning.effort if self.reasoning else None,
            logprobs=bool(self.top_logprobs or LOGPROBS in (self.include or [])),
            top_logprobs=self.top_logprobs,
        )

    def input_items(self) -> list[StoredItem]:
        """What the request adds to its conversation, each with an id."""
        return stored_items(self.input)

    @classmethod
    def counted(cls, body: CountRequest) -> ResponseRequest:
        """A request whose input is only counted."""
        fields = {name: getattr(body, name) for name in body.__struct_fields__}
        return cls(**{**fields, "model": body.model or "", "input": body.input or []})

    def _choice(self) -> str | ToolChoice | None:
        choice = self.tool_choice
        if not isinstance(choice, ResponseToolChoice):
            return choice
        allowed = None
        if choice.type == "allowed_tools":
            allowed = AllowedTools(mode=choice.mode, tools=[_named(one) for one in choice.tools or []])
        return ToolChoice(type=choice.type, function=_named(choice).function, allowed_tools=allowed)

    def _format(self) -> ResponseFormat | None:
        form = self.text.format if self.text else None
        if form is None:
            return None
        if form.type == "json_schema" and form.schema is None:
            raise RequestError(
                "text.format is of type json_schema and has no schema; send name and schema",
                param="text.format.schema",
            )
        schema = JsonSchemaFormat(name=form.name, schema=form.schema) if form.schema is not None else None
        return ResponseFormat(type=form.type, json_schema=schema)


class CountRequest(AdapterFields, kw_only=True):
    """What is read of a body whose input is counted."""

    model: str | None = None  # may be left out where one model is deployed
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def _tool(tool: ResponseTool, path: str) -> Tool:
    if tool.type != "function":
        raise UnsupportedParameter(
            f"{path}.type is {tool.type!r}; this version knows tools of type function", param=f"{path}.type"
        )
    if tool.name is None:
        raise RequestError(f"{path}.name is missing; it is required", param=f"{path}.name")
    return Tool(
        type="function",
        function=FunctionDefinition(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        ),
    )


def _named(tool: ResponseTool | ResponseToolChoice) -> NamedTool:
    return NamedTool(type=tool.type, function=None if tool.name is None else FunctionName(name=tool.name))
