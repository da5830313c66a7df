"""GLM 4.5 and later: `<tool_call>NAME`, then `<arg_key>` and `<arg_value>` in turn, `</tool_call>`."""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Broken, Steps
from trivet.text.tool_calls.tagged_arguments import TaggedArguments

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class GlmParser(ToolParser):
    """Values of parameters that the schema calls strings are text, the others JSON."""

    opening = BEGIN
    markers = (BEGIN, END, KEY, KEY_END, VALUE, VALUE_END)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        while marker := (yield from self.source.pass_until((BEGIN,), self.content)):
            yield from self.attempt(marker, self._call())

    def _call(self) -> Steps[None]:
        head, marker = yield from self.source.text_until(KEY, END)
        name = head.strip()
        if any(char.isspace() for char in name):
            raise Broken(name)
        arguments = TaggedArguments(self, name)
        while marker == KEY:
            key, _ = yield from self.source.text_until(KEY_END)
            yield from self.source.spaces()
            yield from self.source.expect(VALUE)
            value, _ = yield from self.source.text_until(VALUE_END)
            arguments.add(key.strip(), value)
            between, marker = yield from self.source.text_until(KEY, END)
            if between.strip():
                raise Broken(between)
        arguments.end()
