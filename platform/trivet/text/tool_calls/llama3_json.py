"""Llama 3.1 to 3.3: the whole answer is `{"name": ..., "parameters": {...}}`.

Several have `;` between them, or are a list as in JSON.
"""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Steps

BEGIN = "<|python_tag|>"


class Llama3JsonParser(ToolParser):
    """Without a mark of its own a call is known by its name: one of the request's functions."""

    markers = (BEGIN,)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        source = self.source
        self.content((yield from source.spaces()))
        has_tag = yield from source.next_is(BEGIN)
        begin = BEGIN if has_tag else ""
        is_list = yield from source.next_is("[")
        begin += "[" if is_list else ""
        while begin or (yield from source.starts_with("{")):
            if not (yield from self.attempt(begin, self._call())):
                return
            begin = ""
            yield from source.spaces()
            if (yield from source.next_is(";")) or (yield from source.next_is(",")):
                yield from source.spaces()
        if is_list:
            yield from source.next_is("]")

    def _call(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.call_object(needs_arguments=True, is_known_only=True)
