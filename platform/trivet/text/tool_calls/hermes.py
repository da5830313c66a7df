"""Hermes 2 Pro, Qwen 2.5 and 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number."""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Steps

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """A closing tag that is missing is forgiven, and so is a brace too many before it."""

    opening = BEGIN
    markers = (BEGIN, END)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        while marker := (yield from self.source.pass_until((BEGIN,), self.content)):
            if (yield from self.attempt(marker, self._call(), END)):
                yield from self.source.spaces()
                if (yield from self.source.next_is("}")):
                    yield from self.source.spaces()
                yield from self.source.next_is(END)

    def _call(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.call_object()
