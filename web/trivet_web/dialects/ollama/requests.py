"""Bodies of `/api/chat` and `/api/generate`, and the requests that they mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.chat import ChatRequest
from trivet_web.api.completions import CompletionRequest
from trivet_web.api.conversation import FunctionCall, Message, ToolCall
from trivet_web.api.sampling_fields import Integer
from trivet_web.api.structured_fields import JsonSchemaFormat, ResponseFormat
from trivet_web.api.tools import FunctionDefinition, Tool
from trivet_web.dialects.ollama.names import Named
from trivet_web.dialects.ollama.options import read_options

_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|-?\d+")


class CalledEarlier(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model called; its arguments are an object here."""

    name: str
    arguments: dict[str, Any] = {}


class CallEarlier(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier turn."""

    function: CalledEarlier
    id: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CallEarlier] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def message(self, place: str) -> Message:
        """Raises: UnsupportedParameter."""
        refuse_images(self.images, f"{place}.images")
        calls = [
            ToolCall(FunctionCall(c.function.name, msgspec.json.encode(c.function.arguments).decode()), c.id)
            for c in self.tool_calls or []
        ]
        return Message(
            role=self.role,
            content=self.content,
            name=self.tool_name,
            reasoning_content=self.thinking,
            tool_calls=calls or None,
            tool_call_id=self.tool_call_id,
        )


class ToolFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's frame around it."""

    function: ToolFunction
    type: str | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """What both have. They stream where nothing else is said."""

    model: str | None = None
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    truncate: bool | None = None
    shift: bool | None = None

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False

    @property
    def wants_thinking(self) -> bool:
        return self.think not in (None, False, "")

    def chat(
        self, named: Named, messages: Sequence[Message], tools: Sequence[OfferedTool] = ()
    ) -> ChatRequest:
        """Raises: RequestError, UnsupportedParameter."""
        self.check_hints()
        effort = self.think if isinstance(self.think, str) and self.think else None
        switches = None if self.think is None else {"enable_thinking": self.wants_thinking}
        if switches is not None:
            switches["thinking"] = self.wants_thinking
        return ChatRequest(
            model=named.model.id,
            messages=[*told_before(named, messages), *messages],
            stream=self.is_streamed,
            tools=[_tool(tool) for tool in tools],
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            response_format=self.response_format,
            reasoning_effort=effort,
            chat_template_kwargs=switches,
            **self.option_fields(named),
        )

    def check_hints(self) -> None:
        """Raises: RequestError, UnsupportedParameter."""
        check_keep_alive(self.keep_alive)
        for name, instead in (
            ("truncate", "a prompt that is too long is refused: leave truncate out, and shorten the prompt"),
            ("shift", "an answer ends where the context does: leave shift out"),
        ):
            if getattr(self, name):
                raise UnsupportedParameter(
                    f"{name} is true; this version does not carry it out: {instead}", param=name
                )

    def option_fields(self, named: Named) -> dict[str, Any]:
        """Raises: RequestError, UnsupportedParameter."""
        return read_options(self.options, named.variant.options if named.variant else None).fields()

    @property
    def response_format(self) -> ResponseFormat | None:
        """Raises: RequestError."""
        if not self.format:
            return None
        if self.format == "json":
            return ResponseFormat(type="json_object")
        if isinstance(self.format, str):
            raise RequestError(
                f"format is {self.format[:80]!r}; it must be json or a JSON Schema", param="format"
            )
        return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=self.format))


class OllamaChatRequest(GenerationFields, kw_only=True):
    """Body of `/api/chat`."""

    messages: list[ChatMessage] | None = None
    tools: list[OfferedTool] | None = None

    def completion(self, named: Named) -> ChatRequest:
        """The same as a chat of ours. Raises: RequestError, UnsupportedParameter."""
        given = self.messages or []
        messages = [one.message(f"messages[{index}]") for index, one in enumerate(given)]
        return self.chat(named, messages, self.tools or [])


class OllamaGenerateRequest(GenerationFields, kw_only=True):
    """Body of `/api/generate`."""

    prompt: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    images: list[str] | None = None
    context: list[int] | None = None

    def check(self) -> None:
        """Raises: UnsupportedParameter."""
        refuse_images(self.images, "images")
        for name, instead in (
            ("template", "launch the model with its own chat template, or send raw with the whole prompt"),
            ("suffix", "put it into the prompt as the model expects it, and send raw"),
            ("context", "send the conversation to /api/chat"),
        ):
            if getattr(self, name):
                raise UnsupportedParameter(
                    f"{name} is given; this version does not carry it out: {instead}", param=name
                )

    def completion(self, named: Named) -> ChatRequest:
        """The prompt as a user's message. Raises: RequestError, UnsupportedParameter."""
        messages = [Message(role="system", content=self.system)] if self.system else []
        return self.chat(named, [*messages, Message(role="user", content=self.prompt)])

    def raw_completion(self, named: Named) -> CompletionRequest:
        """The prompt as it is. Raises: RequestError, UnsupportedParameter."""
        self.check_hints()
        return CompletionRequest(
            model=named.model.id,
            prompt=self.prompt or "",
            stream=self.is_streamed,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            response_format=self.response_format,
            **self.option_fields(named),
        )


def told_before(named: Named, messages: Sequence[Message]) -> list[Message]:
    """What a created model is told before each conversation that has no system message of its own."""
    variant = named.variant
    if variant is None:
        return []
    has_system = any(one.role == "system" for one in messages)
    system = [] if has_system or not variant.system else [Message(role="system", content=variant.system)]
    return [*system, *(Message(**one) for one in variant.messages)]


def refuse_images(images: list[str] | None, place: str) -> None:
    """Raises: UnsupportedParameter."""
    if images:
        raise UnsupportedParameter(
            f"{place} has {len(images)}; this version reads text only: leave them out", param=place
        )


def check_keep_alive(value: float | str | None) -> None:
    """A hint: how long a model stays loaded is its deployment's `idle_timeout_s`. Raises: RequestError."""
    if isinstance(value, str) and value and not _DURATION.fullmatch(value):
        raise RequestError(
            f"keep_alive is {value[:80]!r}; it must be seconds or a duration such as 5m", param="keep_alive"
        )


def _tool(tool: OfferedTool) -> Tool:
    function = tool.function
    return Tool(
        type=tool.type or "function",
        function=FunctionDefinition(
            name=function.name, description=function.description, parameters=function.parameters
        ),
    )
