"""DeepSeek V3, R1 and V3.1: each call in marks of its own, the name before the arguments."""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Broken, Steps

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"


class DeepSeekParser(ToolParser):
    """Of both forms.

    V3 and R1 write `function`, the separator, the name, and the arguments in a fenced block; V3.1 the name,
    the separator and the arguments.
    """

    opening = BEGIN
    markers = (BEGIN, END, CALL, SEPARATOR, CALL_END)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        while marker := (yield from self.source.pass_until((BEGIN, CALL), self.content)):
            is_read = True
            if marker == CALL:
                is_read = yield from self.attempt(marker, self._call())
            while is_read:
                yield from self.source.spaces()
                if not (yield from self.source.next_is(CALL)):
                    break
                is_read = yield from self.attempt(CALL, self._call())
            if is_read:
                yield from self.source.next_is(END)

    def _call(self) -> Steps[None]:
        source = self.source
        head, _ = yield from source.text_until(SEPARATOR)
        name = head.strip()
        is_fenced = name == "function"
        if is_fenced:
            line, _ = yield from source.text_until("\n")
            name = line.strip()
            yield from source.spaces()
            yield from source.next_is(f"{FENCE}json")
        yield from source.spaces()
        if not (yield from source.starts_with("{")):
            raise Broken("{")
        self.start(name)
        yield from source.json_object(self.arguments)
        self.end()
        yield from source.spaces()
        if is_fenced:
            yield from source.next_is(FENCE)
            yield from source.spaces()
        yield from source.next_is(CALL_END)
