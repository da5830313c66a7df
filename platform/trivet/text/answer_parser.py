"""One completion's text, split into reasoning, content and calls as it comes."""

from __future__ import annotations

from collections.abc import Iterable

from trivet.text.reasoning import ReasoningParser
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event, Reasoning
from trivet.text.tool_calls.parser import ToolParser


class AnswerParser:
    """Thinking is over before calls are looked for: what a model only thinks of calling is no call."""

    def __init__(
        self, reasoning: ReasoningParser | None, tools: ToolParser | None, *, max_calls: int | None = None
    ) -> None:
        """Args: max_calls: calls beyond are left out; None: all are wanted."""
        self._reasoning = reasoning
        self._tools = tools
        self._max_calls = max_calls

    @property
    def has_reasoned(self) -> bool:
        """Whether there has been thinking, as far as the text so far tells."""
        return self._reasoning is not None and self._reasoning.has_begun

    def push(self, text: str) -> list[Event]:
        """What this text makes certain; joined, it is the same however the text is cut."""
        if self._reasoning is None:
            return self._wanted(self._of_content(text))
        return self._wanted(self._through(self._reasoning.push(text)))

    def finish(self) -> list[Event]:
        """What was still held back."""
        events = [] if self._reasoning is None else self._through(self._reasoning.finish())
        if self._tools is not None:
            events += self._tools.finish()
        return self._wanted(events)

    def _through(self, parts: Iterable[Event]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            events += self._of_content(part.text) if isinstance(part, Content) else [part]
        return events

    def _of_content(self, text: str) -> list[Event]:
        if self._tools is not None:
            return list(self._tools.push(text))
        return [Content(text)] if text else []

    def _wanted(self, events: list[Event]) -> list[Event]:
        limit = self._max_calls
        if limit is None:
            return events
        return [e for e in events if isinstance(e, Reasoning | Content) or e.index < limit]


class Call:
    """A call, whole or as much as has come."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments = ""


class AnswerParts:
    """A whole completion, of its events in order. A call that broke is content, as it was written."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.content = ""
        self._calls: dict[int, Call] = {}

    @property
    def calls(self) -> list[Call]:
        return list(self._calls.values())

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, CallStart):
                self._calls[event.index] = Call(event.name)
            elif isinstance(event, CallArguments):
                self._calls[event.index].arguments += event.text
            else:
                self._take_back(event)

    def _take_back(self, event: CallBroken) -> None:
        del self._calls[event.index]
        self.content += event.source
