"""Qwen3-Coder: `<tool_call><function=NAME>`, then `<parameter=KEY>` and the value, closing tags."""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Broken, Steps
from trivet.text.tool_calls.tagged_arguments import TaggedArguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderParser(ToolParser):
    """A value is between line breaks, which are no part of it. The outer tag may be missing."""

    opening = BEGIN
    markers = (BEGIN, END)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        while marker := (yield from self.source.pass_until((BEGIN, FUNCTION), self.content)):
            if (yield from self.attempt(marker, self._call(marker))):
                yield from self.source.spaces()
                yield from self.source.next_is(END)

    def _call(self, marker: str) -> Steps[None]:
        source = self.source
        if marker == BEGIN:
            yield from source.spaces()
            yield from source.expect(FUNCTION)
        head, _ = yield from source.text_until(">")
        name = head.strip().strip("\"'")
        if any(char.isspace() for char in name):
            raise Broken(name)
        arguments = TaggedArguments(self, name)
        while True:
            between, marker = yield from source.text_until(PARAMETER, FUNCTION_END)
            if between.strip():
                raise Broken(between)
            if marker == FUNCTION_END:
                break
            key, _ = yield from source.text_until(">")
            value, _ = yield from source.text_until(PARAMETER_END)
            arguments.add(key.strip().strip("\"'"), value.removeprefix("\n").removesuffix("\n"))
        arguments.end()
