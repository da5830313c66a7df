"""The pump between input, engine and journal, with a site that answers at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from trivet_web.batch import run as run_module
from trivet_web.batch.forms import Answered, Request, SimpleForm
from trivet_web.batch.input_file import InputLine
from trivet_web.batch.journal import Journal
from trivet_web.batch.offline_site import EngineEnded
from trivet_web.batch.progress import Progress
from trivet_web.batch.run import run_batch

NUM_LINES, NUM_THREADS = 200, 5


class Site:
    """Answers with the prompt; ends with line `last`."""

    def __init__(self, last: int = NUM_LINES) -> None:
        self.last = last
        self.asked: list[int] = []
        self.is_ended = False
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answered:
        number = int(json.loads(request.body)["prompt"])
        with self._lock:
            self.asked.append(number)
        if number >= self.last:
            raise EngineEnded("the engine ended")
        return Answered(200, "r", json.dumps({"choices": [{"text": str(number)}]}).encode())

    def end_all(self) -> None:
        self.is_ended = True


def lines(journal: Journal, most: list[int]) -> Iterator[InputLine]:
    """Watches how far reading is ahead of writing."""
    for index in range(NUM_LINES):
        most[0] = max(most[0], index - journal.tally.lines)
        yield InputLine(index, index + 1, json.dumps({"prompt": str(index)}).encode())


def run(site: Site, journal: Journal, most: list[int]) -> None:
    progress = Progress(NUM_LINES, journal.tally, lambda text: None)
    form = SimpleForm("m", {}, 5)
    run_batch(site, form, lines(journal, most), journal, progress, NUM_THREADS)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "out", {}, NUM_LINES)
    yield journal
    journal.close()


def test_reading_is_ahead_of_writing_by_no_more_than_the_threads(journal: Journal) -> None:
    site, most = Site(), [0]
    run(site, journal, most)
    assert sorted(site.asked) == list(range(NUM_LINES))
    assert journal.tally.lines == NUM_LINES
    assert most[0] <= NUM_THREADS
    assert not site.is_ended


def test_what_was_answered_stands_when_the_engine_ends_and_is_not_asked_again(journal: Journal) -> None:
    site = Site(last=100)
    with pytest.raises(EngineEnded):
        run(site, journal, [0])
    assert site.is_ended
    answered = [index for index in range(NUM_LINES) if journal.is_done(index)]
    assert len(answered) >= 100 - NUM_THREADS
    assert max(answered) < 100
    again = Site()
    run(again, journal, [-NUM_LINES])
    assert sorted(again.asked) == sorted(set(range(NUM_LINES)) - set(answered))


def test_what_was_answered_beside_the_line_that_ends_it_stands(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine looks late, when all that were asked have come back."""
    monkeypatch.setattr(run_module, "wait", lambda pending, return_when: wait(pending))
    with pytest.raises(EngineEnded):
        run(Site(last=103), journal, [0])
    assert journal.tally.lines == 103
