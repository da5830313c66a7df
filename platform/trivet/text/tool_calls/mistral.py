"""Mistral: `[TOOL_CALLS]` and a list of objects, or since 2025 a name, `[ARGS]` and the arguments."""

from __future__ import annotations

from trivet.text.tool_calls.parser import ToolParser
from trivet.text.tool_calls.source import Broken, Steps

BEGIN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(ToolParser):
    """Both forms; the second one also without `[ARGS]`, and with an id, for which ours stands."""

    opening = BEGIN
    markers = (BEGIN, ID, ARGS)

    def calls(self) -> Steps[None]:
        """As `ToolParser`."""
        while marker := (yield from self.source.pass_until((BEGIN,), self.content)):
            spaces = yield from self.source.spaces()
            if (yield from self.source.next_is("[")):
                yield from self._list(f"{marker}{spaces}[")
            else:
                yield from self.attempt(marker + spaces, self._named())

    def _list(self, begin: str) -> Steps[None]:
        """A call that breaks takes none of those before it along."""
        begin += yield from self.source.spaces()
        if (yield from self.source.next_is("]")):
            return
        while (yield from self.attempt(begin, self.call_object(), "}")):
            begin = yield from self.source.spaces()
            if not (yield from self.source.next_is(",")):
                break
            begin += ","
            begin += yield from self.source.spaces()
        yield from self.source.next_is("]")

    def _named(self) -> Steps[None]:
        head, marker = yield from self.source.text_until(ID, ARGS, "{")
        if marker == ID:
            yield from self.source.text_until(ARGS)
        name = head.strip()
        if not name or any(char.isspace() for char in name):
            raise Broken(name)
        if marker != "{":
            yield from self.source.spaces()
            if not (yield from self.source.starts_with("{")):
                raise Broken("{")
        yield from self._arguments(name, "{" if marker == "{" else "")

    def _arguments(self, name: str, begin: str) -> Steps[None]:
        self.start(name)
        if begin:
            self.arguments(begin)
        yield from self.source.json_object(self.arguments, begin)
        self.end()
