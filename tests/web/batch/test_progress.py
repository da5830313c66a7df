"""How far a batch has come, in words."""

from __future__ import annotations

import pytest

from trivet_web.batch.journal import Tally
from trivet_web.batch.progress import INTERVAL_S, Progress


def test_rates_are_of_this_run_and_lines_come_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    tally, told, now = Tally(lines=100, tokens=5_000), [], [0.0]
    progress = Progress(1_000, tally, told.append, clock=lambda: now[0])
    for _ in range(100):
        now[0] += INTERVAL_S / 50
        tally.lines += 1
        tally.tokens += 60
        progress.update()
    progress.close()
    assert told == ["150/1000 lines, 100 tokens/s, 08:30 left", "200/1000 lines, 100 tokens/s, 08:00 left"]
