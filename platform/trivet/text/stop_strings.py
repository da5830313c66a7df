"""Finds stop strings in text that comes in pieces, and holds back what may become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

MAX_KEPT = 16  # searches; the completions of one prompt share theirs


class StopStrings:
    """One search for all stop strings at once, in time linear in the text (Aho and Corasick, 1975).

    The stop string that is complete first ends the text, as it does when every character comes alone; of
    several that end at the same character it is the longest, which starts first. So the result does not
    depend on how the text is cut into pieces. Text that may be the start of a stop string is held back
    until that is decided, and only that.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Empty strings are ignored. `include`: the stop string itself is part of the text."""
        self._include = include
        self._states = _states_of(tuple(filter(None, stops)))
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns: text that no stop string can begin in, and the stop string if one is complete.

        Nothing comes out after a match.
        """
        if self.matched is not None:
            return "", self.matched
        for index, character in enumerate(text):
            self._state = self._states.step(self._state, character)
            stop = self._states.match[self._state]
            if stop is not None:
                return self._end(self._held + text[: index + 1], stop)
        pending = self._held + text
        border = len(pending) - self._states.depth[self._state]
        self._held = pending[border:]
        return pending[:border], None

    def finish(self) -> str:
        """The text that was held back, which is final now; nothing after a match."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _end(self, text: str, stop: str) -> tuple[str, str]:
        self.matched = stop
        self._held = ""
        return (text if self._include else text[: -len(stop)]), stop


class _States:
    """The states of a search: the starts of its stop strings. Nothing changes once they are built."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.match: list[str | None] = [None]
        self.depth = [0]  # characters of a stop string that a state has seen
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while True:
            following = self._next[state].get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallback[state]

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self.match.append(None)
                self.depth.append(self.depth[state] + 1)
            state = following
        self.match[state] = stop

    def _link(self) -> list[int]:
        """For each state, the longest proper suffix of it that starts a stop string, breadth first."""
        fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self.match[state] = self.match[state] or self.match[fallback[state]]
            for character, following in self._next[state].items():
                queue.append(following)
                suffix = fallback[state]
                while suffix and character not in self._next[suffix]:
                    suffix = fallback[suffix]
                fallback[following] = self._next[suffix].get(character, 0)
        return fallback


@lru_cache(maxsize=MAX_KEPT)
def _states_of(stops: tuple[str, ...]) -> _States:
    return _States(stops)
