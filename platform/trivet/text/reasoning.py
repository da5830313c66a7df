"""A reasoning model's thinking, which it writes before its answer between two marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivet.text.tool_calls.events import Content, Event, Reasoning
from trivet.text.tool_calls.source import Source, Steps

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family thinks. `assumes`: also where neither prompt nor completion says that it begins."""

    assumes: bool = False


FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(assumes=True),
    "qwen3": ReasoningFormat(),
    "glm": ReasoningFormat(),
    "glm45": ReasoningFormat(),
}


def begins_in_reasoning(prompt: str, form: ReasoningFormat) -> bool:
    """Whether a completion of this prompt, as the template has rendered it, begins with thinking.

    Many templates write the mark themselves; where thinking is switched off, they write both.
    """
    end = prompt.rstrip()
    return end.endswith(BEGIN) or (form.assumes and not end.endswith(END))


class ReasoningParser:
    """A completion's text to reasoning and the rest; white space around the marks is part of neither.

    As tool parsers (tool_calls/parser.py): all pieces joined are the same however the text is cut.
    """

    markers = (BEGIN, END)

    def __init__(self, *, begins_inside: bool) -> None:
        self.has_begun = begins_inside  # as far as the text so far tells
        self._source = Source()
        self._events: list[Event] = []
        self._spaces = ""
        self._steps = self._run(begins_inside)

    def push(self, text: str) -> list[Event]:
        """What this text makes certain."""
        self._source.add(text)
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """What was still held back."""
        self._source.is_over = True
        return self.push("")

    def _run(self, begins_inside: bool) -> Steps[None]:
        source = self._source
        spaces = yield from source.spaces()
        self.has_begun = (yield from source.next_is(BEGIN)) or begins_inside
        if not self.has_begun:
            self._content(spaces)
            yield from source.rest(self._content)
            return
        yield from source.spaces()
        yield from source.pass_until((END,), self._reasoning)
        yield from source.spaces()
        yield from source.rest(self._content)

    def _content(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _reasoning(self, text: str) -> None:
        text = self._spaces + text
        shown = text.rstrip()
        self._spaces = text[len(shown) :]
        if shown:
            self._events.append(Reasoning(shown))
