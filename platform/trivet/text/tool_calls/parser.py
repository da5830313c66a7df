"""What every format's parser shares: text goes in, content and calls come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trivet.text.tool_calls.events import CallArguments, CallBroken, CallEvent, CallStart, Content
from trivet.text.tool_calls.source import Broken, Source, Steps, decoded

Tools = Mapping[str, Mapping[str, Any]]  # JSON Schema of the parameters, by the function's name
_KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "function"})


class ToolParser:
    """A completion's text to content and calls; all pieces joined are the same however the text is cut.

    White space around a call is part of neither. What is not of the format is content, as it is written;
    only of a call that has been announced already does `CallBroken` tell. Not thread-safe.
    """

    opening = (
        ""  # with which a completion begins that is nothing but calls; empty: JSON of an answer may, too
    )
    markers: Sequence[str] = ()  # texts of tokens that must show, though they may be special ones

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.source = Source()
        self._events: list[CallEvent] = []
        self._num_calls = 0
        self._is_open = False  # the newest call has begun and not ended
        self._spaces: list[str] = []  # content so far, if content follows
        self._before_call = ""  # spaces that are content if the newest call is none
        self._is_after_call = False
        self._steps = self._run()

    def push(self, text: str) -> list[CallEvent]:
        """What this text makes certain."""
        self.source.add(text)
        return self._advance()

    def finish(self) -> list[CallEvent]:
        """What was still held back; nothing is pushed afterwards."""
        self.source.is_over = True
        events = self._advance()
        if spaces := "".join(self._spaces):
            events.append(Content(spaces))
        return events

    def _advance(self) -> list[CallEvent]:
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    # ---- of a format -----------------------------------------------------------------------------

    def calls(self) -> Steps[None]:
        """The whole text: `content`, `start`, `arguments` and `end` of what is read."""
        raise NotImplementedError

    def attempt(self, begin: str, call: Steps[None], end: str = "") -> Steps[bool]:
        """Read a call whose `begin` has been consumed; what is none becomes content.

        A call whose arguments are complete stands. What breaks behind them is passed over, to `end` with it.
        """
        self.source.keep(begin)
        num_before = self._num_calls
        try:
            yield from call
        except Broken:
            is_announced, self._is_open = self._is_open, False
            source = self.source.kept()
            if not is_announced and self._num_calls > num_before:
                if end:
                    yield from self.source.pass_until((end,), _nowhere)
                return True
            if is_announced:
                self._is_after_call = False
                self._events.append(CallBroken(self._num_calls - 1, self._before_call + source))
            else:
                self.content(source)
            return False
        self.source.kept()
        return True

    def content(self, text: str) -> None:
        shown = text.rstrip()
        spaces = text[len(shown) :]
        if not shown:
            if not self._is_after_call:
                self._spaces.append(spaces)
            return
        shown = shown.lstrip() if self._is_after_call else "".join((*self._spaces, shown))
        self._spaces, self._is_after_call = [spaces], False
        self._events.append(Content(shown))

    def start(self, name: str) -> None:
        """A call is certain enough to be announced. Raises: Broken for no name."""
        if not name:
            raise Broken("name")
        self._before_call = "".join(self._spaces)
        self._spaces, self._is_after_call, self._is_open = [], True, True
        self._events.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        self._events.append(CallArguments(self._num_calls - 1, text))

    def end(self) -> None:
        """The call's arguments are complete."""
        self._is_open = False

    def call_object(self, *, needs_arguments: bool = False, is_known_only: bool = False) -> Steps[None]:
        """`{"name": ..., "arguments": {...}}`, in any order; `parameters` is the same as `arguments`.

        A missing brace at the end is forgiven: models forget it, and the arguments are complete.

        Raises: Broken.
        """
        source = self.source
        name, before = "", ""  # arguments that came before the name
        is_done = False
        yield from source.expect("{")
        while True:
            yield from source.spaces()
            key = yield from source.json_string()
            yield from source.spaces()
            yield from source.expect(":")
            yield from source.spaces()
            if key == "name":
                name = yield from source.json_string()
                if is_known_only and name not in self.tools:
                    raise Broken(name)
            elif key in ("arguments", "parameters") and name and not is_done:
                yield from self._arguments_of(name)
                is_done = True
            elif key in _KEYS or is_done:  # behind the arguments also one of the model's own, as its reason
                value = yield from source.json_value()
                before = value if key in ("arguments", "parameters") else before
            else:
                raise Broken(key)
            if name and before and not is_done:
                self._whole(name, before)
                is_done = True
            yield from source.spaces()
            if not (yield from source.next_is(",")):
                break
        is_closed = yield from source.next_is("}")
        if is_done:
            return
        if not is_closed or needs_arguments:
            raise Broken("arguments")
        self._whole(name, "{}")

    def _arguments_of(self, name: str) -> Steps[None]:
        """An object is handed on as it comes; what is written as text, or null, when it is there."""
        if (yield from self.source.starts_with("{")):
            self.start(name)
            yield from self.source.json_object(self.arguments)
            self.end()
            return
        value = yield from self.source.json_value()
        self._whole(name, value)

    def _whole(self, name: str, arguments: str) -> None:
        """Raises: Broken for arguments that are no object."""
        arguments = as_object(arguments)
        self.start(name)
        self.arguments(arguments)
        self.end()

    def _run(self) -> Steps[None]:
        yield from self.calls()
        yield from self.source.rest(self.content)


def _nowhere(text: str) -> None:
    """What is passed over."""


def as_object(text: str) -> str:
    """Arguments as JSON: an object, one that is written as a string, or null. Raises: Broken."""
    value = decoded(text)
    if value is None:
        return "{}"
    if isinstance(value, str):
        text = value
        value = decoded(text)
    if not isinstance(value, dict):
        raise Broken(text)
    return text
