"""How the completions of one chat request are prompted for and read: tools, reasoning, forced forms."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.answer_parser import AnswerParser
from trivet.text.reasoning import END, ReasoningParser, begins_in_reasoning
from trivet.text.tool_calls.mistral import MistralParser
from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_prompt import has_calls, with_tools_told
from trivet_web.api.inference import Target
from trivet_web.api.tools import ToolUse

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Of one request; `parser` gives each completion its own."""

    target: Target
    tools: ToolUse | None
    make_tool_parser: Callable[[Mapping[str, Any]], ToolParser] | None

    @classmethod
    def of(cls, target: Target, tools: ToolUse | None) -> AnswerForm:
        """Raises: RequestError where nobody knows how the model writes calls."""
        if tools is None:
            return cls(target, None, None)
        make = tools.forced_parser or target.tool_format
        if make is None:
            raise RequestError(
                f"it is unknown how model {target.deployed.name!r} writes calls of tools; launch it with "
                "tool_call_parser=NAME, or ask for tool_choice required or a named tool",
                param="tools",
            )
        return cls(target, tools, make)

    def prompt_messages(self, messages: Messages) -> tuple[Messages, list[dict[str, Any]] | None]:
        """Messages and tools for the template; where it knows no tools, messages alone."""
        tools = None if self.tools is None else self.tools.for_template()
        if not self.target.model.template_takes_tools and (tools or has_calls(messages)):
            return with_tools_told(messages, tools), None
        return messages, tools

    def params(self, params: SamplingParams, prompt: str) -> SamplingParams:
        """With the form of forced calls, and with the marks that the parsers need shown.

        Raises: RequestError for a second form.
        """
        form = None if self.tools is None else self.tools.form()
        if form is not None and params.structured_outputs is not None:
            asked = params.structured_outputs.field.partition(".")[0]
            if asked != "response_format":  # which is of the answer, and there is none beside the calls
                raise RequestError(
                    f"{asked} and tool_choice both ask for a form; send one of them", param=asked
                )
        form = form or self._left_by_calls(params.structured_outputs)
        tokenizer = self.target.model.tokenizer
        if form is not None and self._begins_in_reasoning(prompt):
            form = msgspec.structs.replace(form, begins_after=tokenizer.id_of(END))
        marks = [*(ReasoningParser.markers if self.has_reasoning else ())]
        marks += getattr(self.make_tool_parser, "markers", ())
        ids = {tokenizer.id_of(mark) for mark in marks} & tokenizer.special_ids
        return msgspec.structs.replace(params, structured_outputs=form, visible_token_ids=tuple(sorted(ids)))

    def _left_by_calls(self, form: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
        """An answer of a form where the model may call a tool instead, if its calls begin with plain text."""
        opening: str = getattr(self.make_tool_parser, "opening", "")
        tokenizer = self.target.model.tokenizer
        if form is None or not opening or tokenizer.id_of(opening) in tokenizer.special_ids:
            return form
        is_json = form.json is not None or bool(form.json_object)
        return msgspec.structs.replace(form, unless=opening) if is_json else form

    @property
    def has_reasoning(self) -> bool:
        return self.target.reasoning_format is not None

    def parser(self, prompt: str, form: StructuredOutputsParams | None) -> AnswerParser:
        """Of one completion; `form` as `params` made it."""
        reasoning = None
        if self.has_reasoning:
            # A vocabulary without the mark: the form counts from the first token, which is the answer's then.
            is_formed = form is not None and form.begins_after is None
            begins_inside = self._begins_in_reasoning(prompt) and not is_formed
            reasoning = ReasoningParser(begins_inside=begins_inside)
        if self.tools is None or self.make_tool_parser is None:
            return AnswerParser(reasoning, None)
        max_calls = None if self.tools.is_parallel else 1
        return AnswerParser(reasoning, self.make_tool_parser(self.tools.schemas), max_calls=max_calls)

    def new_call_id(self) -> str:
        """Mistral's templates take ids of nine characters only."""
        if MistralParser in (self.make_tool_parser, self.target.tool_format):
            return secrets.token_hex(5)[:9]
        return f"call_{secrets.token_hex(12)}"

    def _begins_in_reasoning(self, prompt: str) -> bool:
        form = self.target.reasoning_format
        return form is not None and begins_in_reasoning(prompt, form)
