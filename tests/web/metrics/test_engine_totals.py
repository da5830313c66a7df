"""Counters of engines that start again, seen by several web processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.messages import EngineLoad
from trivet_web.metrics.engine_totals import EngineTotals, join_files


def load(tokens: int, stopped: int = 0) -> EngineLoad:
    return EngineLoad(generation_tokens=tokens, num_finished={"stop": stopped} if stopped else {})


def test_an_attempt_adds_to_those_before_it_and_a_late_word_takes_nothing_back() -> None:
    totals = EngineTotals()
    totals.observe("i", "first", load(100, 3))
    totals.observe("i", "first", load(90, 2))
    totals.observe("i", "second", load(5, 1))
    (told,) = totals.loads().values()
    assert (told.generation_tokens, told.num_finished) == (105, {"stop": 4})


def test_whoever_is_asked_shows_no_less_than_another_has_shown(tmp_path: Path) -> None:
    one, other = EngineTotals(tmp_path), EngineTotals(tmp_path)
    other.observe("i", "first", load(98))
    one.observe("i", "first", load(100))
    assert one.loads()["i"].generation_tokens == 100
    assert other.loads()["i"].generation_tokens == 100


def test_what_was_shown_survives_the_web_server_and_its_files_become_one(tmp_path: Path) -> None:
    for lease in ("first", "second"):
        process = EngineTotals(tmp_path)
        process.observe("i", lease, load(10))
        process.loads()
    join_files(tmp_path, None)
    assert len(list(tmp_path.iterdir())) == 1
    assert EngineTotals(tmp_path).loads()["i"].generation_tokens == 20


def test_instances_that_are_gone_are_forgotten() -> None:
    totals = EngineTotals()
    totals.observe("i", "a", load(1))
    totals.observe("j", "b", load(1))
    totals.keep(["j"])
    assert list(totals.loads()) == ["j"]


def test_what_one_process_has_forgotten_does_not_come_back_from_another(tmp_path: Path) -> None:
    both = EngineTotals(tmp_path), EngineTotals(tmp_path)
    for instance in "ij":
        both[0].observe(instance, "a", load(1))
    for process in both:
        process.loads()
    for process in both:
        process.keep(["j"])
        assert list(process.loads()) == ["j"], "the other's file has the other one still"
    assert list(EngineTotals(tmp_path).loads()) == ["j"]


def test_starting_again_forgets_instances_that_are_gone(tmp_path: Path) -> None:
    """Of which nobody's file would ever be without."""
    process = EngineTotals(tmp_path)
    for instance in "ij":
        process.observe(instance, "a", load(1))
    process.loads()
    join_files(tmp_path, ["j", "k"])
    assert list(EngineTotals(tmp_path).loads()) == ["j"]


def test_a_file_that_cannot_be_read_is_left_out_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a power failure leaves it; the web server would not start."""
    whole = EngineTotals(tmp_path)
    whole.observe("i", "first", load(10))
    whole.loads()
    (tmp_path / "1-cut.engines").write_bytes(b"\x81\xa1")
    join_files(tmp_path, None)
    (tmp_path / "2-cut.engines").write_bytes(b"")
    totals = EngineTotals(tmp_path)
    caplog.clear()
    assert [totals.loads()["i"].generation_tokens for _ in range(3)] == [10] * 3
    assert not caplog.records
