"""The open lines of a batch in turns over its file: one that got no answer is asked again in the next turn.

No line is held in memory. The lines of a model that cannot answer are passed over for a moment, so that
those of other models in the same file go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trivet_web.batch.input_file import InputLine, read_lines

RETRY_S = 1.0
MAX_PAUSE_S = 10.0  # between turns in which nothing was answered: each reads the whole file


class LineQueue:
    """Of one thread."""

    def __init__(
        self, path: Path, is_open: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args: is_open: whether the line of this index is neither answered nor under way."""
        self._path = path
        self._is_open = is_open
        self._clock = clock
        self._turn = read_lines(path)
        self._has_turn = True
        self._is_another_due = False
        self._next_turn_s = 0.0
        self._pause_s = RETRY_S
        self._resting: dict[str, float] = {}  # model → until when

    @property
    def is_stalled(self) -> bool:
        """A whole turn went by without an answer."""
        return self._pause_s > RETRY_S and bool(self._resting)

    def take(self) -> InputLine | None:
        """None: there is none to be asked now. Raises: ConfigError where the file cannot be read."""
        now_s = self._clock()
        if not self._has_turn:
            if not self._is_another_due or now_s < self._next_turn_s:
                return None
            self._turn, self._has_turn, self._is_another_due = read_lines(self._path), True, False
        for line in self._turn:
            if not self._is_open(line.index):
                continue
            if self._resting and self._resting.get(_model(line), 0.0) > now_s:
                self._is_another_due = True
                continue
            return line
        self._has_turn = False
        self._next_turn_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        return None

    def put_back(self, line: InputLine) -> None:
        """It got no answer."""
        self._is_another_due = True
        self._resting[_model(line)] = self._clock() + RETRY_S

    def pass_over(self) -> None:
        """The line that was taken last may not be asked now; in the next turn, perhaps."""
        self._is_another_due = True

    def answered(self, line: InputLine) -> None:
        """So its model answers."""
        self._resting.pop(_model(line), None)
        self._pause_s = RETRY_S

    def close(self) -> None:
        self._turn.close()


class _Body(msgspec.Struct):
    model: str = ""


class _Line(msgspec.Struct):
    body: _Body


def _model(line: InputLine) -> str:
    """Empty where it names none."""
    try:
        return msgspec.json.decode(line.data or b"", type=_Line).body.model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
