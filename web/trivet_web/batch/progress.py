"""How far a batch has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from trivet_web.batch.journal import Tally

INTERVAL_S = 30.0  # between lines


class Progress:
    """Rates and the time that is left are of this run, whatever an earlier one had done."""

    def __init__(
        self,
        num_lines: int,
        tally: Tally,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_lines = num_lines
        self._tally = tally
        self._write = write
        self._clock = clock
        self._begun_s = self._told_s = clock()
        self._begun_lines, self._begun_tokens = tally.lines, tally.tokens
        self._bar = tqdm(
            total=num_lines,
            initial=tally.lines,
            desc="generate",
            unit="line",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def update(self) -> None:
        """A line has been answered."""
        if not self._bar.disable:
            self._bar.set_postfix_str(f"{self._tokens_per_s():.0f} tokens/s", refresh=False)
            self._bar.update()
        elif self._clock() - self._told_s >= INTERVAL_S:
            self._told_s = self._clock()
            self._write(self.text())

    def text(self) -> str:
        """On one line."""
        done, elapsed_s = self._tally.lines, self._clock() - self._begun_s
        per_line_s = elapsed_s / max(done - self._begun_lines, 1)
        left = tqdm.format_interval((self._num_lines - done) * per_line_s)
        return f"{done}/{self._num_lines} lines, {self._tokens_per_s():.0f} tokens/s, {left} left"

    def close(self) -> None:
        self._bar.close()

    def _tokens_per_s(self) -> float:
        return (self._tally.tokens - self._begun_tokens) / max(self._clock() - self._begun_s, 1e-9)
