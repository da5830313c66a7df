"""The fields that offer tools to the model, and what they ask of the completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.tool_calls.forced import (
    MAX_CALLS,
    NamedCallParser,
    RequiredCallsParser,
    named_schema,
    required_schema,
)
from trivet.text.tool_calls.parser import ToolParser
from trivet_web.api.sampling_fields import CompletionFields

MAX_TOOLS = 512
Choice = Literal["auto", "required", "named"]


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # changes nothing: a call that is required always keeps to its schema


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's frame around it."""

    type: str
    function: FunctionDefinition | None = None


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools."""

    type: str
    function: FunctionName | None = None


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the tools."""

    tools: list[NamedTool]
    mode: Literal["auto", "required"] = "auto"


class ToolChoice(NamedTool, frozen=True, kw_only=True):
    """One of the tools, or some of them."""

    allowed_tools: AllowedTools | None = None


class ToolFields(CompletionFields, kw_only=True):
    """Of a chat request, beside those that text completions have, too."""

    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def tool_use(self) -> ToolUse | None:
        """None where the model gets no tools. Raises: RequestError, UnsupportedParameter."""
        tools: Mapping[str, FunctionDefinition] = _functions(self.tools or [])
        is_parallel = self.parallel_tool_calls is not False
        choice = self.tool_choice
        if isinstance(choice, ToolChoice):
            mode, tools = _of_object(choice, tools)
            return ToolUse(tools, mode, is_parallel)
        if choice not in (None, "none", "auto", "required"):
            raise RequestError(
                f"tool_choice is {choice!r}; it must be none, auto, required or an object that names a tool",
                param="tool_choice",
            )
        if choice == "required":
            _require(tools)
            return ToolUse(tools, "required", is_parallel)
        return ToolUse(tools, "auto", is_parallel) if tools and choice != "none" else None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools of one request."""

    functions: Mapping[str, FunctionDefinition]  # by name
    choice: Choice
    is_parallel: bool

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        return {name: function.parameters or {} for name, function in self.functions.items()}

    def for_template(self) -> list[dict[str, Any]]:
        """As templates read them."""
        return [
            {"type": "function", "function": {k: v for k, v in fields.items() if v is not None}}
            for fields in map(msgspec.to_builtins, self.functions.values())
        ]

    @property
    def forced_parser(self) -> Callable[[Mapping[str, Any]], ToolParser] | None:
        """What reads calls that the grammar forces; None where the model decides."""
        if self.choice == "auto":
            return None
        return NamedCallParser if self.choice == "named" else RequiredCallsParser

    def form(self) -> StructuredOutputsParams | None:
        """What the grammar forces; None where the model decides. Raises: RequestError."""
        if self.choice == "auto":
            return None
        schema = self._schema()
        form = StructuredOutputsParams(json=schema, sent_as="tools")
        form.check()
        return msgspec.structs.replace(form, json=form.schema_text)

    def _schema(self) -> dict[str, Any]:
        if self.choice == "named":
            (parameters,) = self.schemas.values()
            return named_schema(parameters)
        return required_schema(self.schemas, MAX_CALLS if self.is_parallel else 1)


def _functions(tools: list[Tool]) -> dict[str, FunctionDefinition]:
    """By name. Raises: RequestError naming the tool."""
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)}; at most {MAX_TOOLS} are taken", param="tools")
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            raise UnsupportedParameter(
                f"{place}.type is {tool.type!r}; this version knows tools of type function",
                param=f"{place}.type",
            )
        if tool.function is None:
            raise RequestError(f"{place}.function is missing; it is required", param=f"{place}.function")
        name = tool.function.name
        if not name.strip() or name in functions:
            wrong = "is there twice" if name in functions else "is empty"
            raise RequestError(
                f"{place}.function.name {name!r} {wrong}; give each function a name of its own",
                param=f"{place}.function.name",
            )
        functions[name] = tool.function
    return functions


def _of_object(
    choice: ToolChoice, tools: Mapping[str, FunctionDefinition]
) -> tuple[Choice, Mapping[str, FunctionDefinition]]:
    """The choice, and the tools that it leaves. Raises: RequestError."""
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        names = [_name_of(one, tools, "tool_choice.allowed_tools.tools") for one in allowed.tools]
        left = {name: tools[name] for name in names}
        _require(left)
        return allowed.mode, left
    if choice.type != "function":
        raise RequestError(
            f"tool_choice.type is {choice.type!r}; it must be function, or allowed_tools with the object of "
            "that name",
            param="tool_choice.type",
        )
    name = _name_of(choice, tools, "tool_choice")
    return "named", {name: tools[name]}


def _name_of(named: NamedTool, tools: Mapping[str, FunctionDefinition], place: str) -> str:
    """Raises: RequestError listing what there is."""
    name, known = named.function.name if named.function else None, ", ".join(tools) or "none"
    if name is None:
        raise RequestError(
            f"{place}.function.name is missing; name one of tools: {known}", param=f"{place}.function.name"
        )
    if name not in tools:
        raise RequestError(
            f"{place} names the function {name!r}, which is not among tools: {known}", param="tool_choice"
        )
    return name


def _require(tools: Mapping[str, FunctionDefinition]) -> None:
    if not tools:
        raise RequestError("tool_choice asks for a call and there are no tools; send tools", param="tools")
