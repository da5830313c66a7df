"""What a run leaves behind, and how the next one takes it up."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from trivet.errors import ConfigError
from trivet_web.batch.journal import Journal, Tally, begun_for

ABOUT = {"model": "m", "input": "5 bytes with sha256 abc"}


def append(journal: Journal, index: int, failed: bool = False) -> None:
    journal.append(index, json.dumps({"id": index}).encode(), is_failed=failed, num_tokens=10)


def ids(file: Path) -> list[int]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_results_appear_in_the_input_s_order_when_all_are_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    journal = Journal(out, ABOUT, 5)
    for index in (3, 0, 4, 1, 2):
        assert not out.exists()
        append(journal, index, failed=index == 4)
    assert journal.tally == Tally(lines=5, failed=1, tokens=50)
    journal.finish()
    journal.close()
    assert ids(out) == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [out]


def test_a_run_is_taken_up_where_it_ended_wherever_it_was_cut(tmp_path: Path) -> None:
    """At every byte of the file: whole rows stay, the rest is as if it had never been."""
    out = tmp_path / "out"
    journal = Journal(out, ABOUT, 4)
    ends = {journal.path.stat().st_size: 0}
    for count, index in enumerate((2, 0, 3), start=1):
        append(journal, index)
        ends[journal.path.stat().st_size] = count
    journal.close()
    whole = journal.path.read_bytes()
    for size in range(len(whole) + 1):
        journal.path.write_bytes(whole[:size])
        again = Journal(out, ABOUT, 4)
        kept = max((count for end, count in ends.items() if end <= size), default=0)
        assert again.tally.lines == kept
        assert [again.is_done(index) for index in (2, 0, 3)] == [count < kept for count in range(3)]
        for index in range(4):
            if not again.is_done(index):
                append(again, index)
        again.finish()
        again.close()
        assert ids(out) == [0, 1, 2, 3]


def test_what_a_lost_host_leaves_behind_the_last_whole_row_is_dropped(tmp_path: Path) -> None:
    """A file may have its length and not its contents."""
    out = tmp_path / "out"
    journal = Journal(out, ABOUT, 3)
    append(journal, 1)
    journal.close()
    for junk in (b"\0" * 40, b'2 0 5 {"id"\n', b'1 0 5 {"id":1}\n', b'9 0 5 {"id":9}\n', b"\n", b"2 0 5\n"):
        kept = journal.path.read_bytes()
        journal.path.write_bytes(kept + junk + b'0 0 5 {"id":0}\n')
        again = Journal(out, ABOUT, 3)
        assert [again.is_done(index) for index in range(3)] == [False, True, False]
        assert again.path.read_bytes() == kept
        again.close()


def test_another_input_or_command_is_refused_by_what_differs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    journal = Journal(out, ABOUT, 3)
    append(journal, 1)
    journal.close()
    before = journal.path.read_bytes()
    with pytest.raises(ConfigError, match=r"model is n and was m; give the same command .* or delete"):
        Journal(out, {**ABOUT, "model": "n"}, 3)
    with pytest.raises(ConfigError, match=r"--seed is 5 and was not given"):
        Journal(out, {**ABOUT, "--seed": "5"}, 3)
    assert journal.path.read_bytes() == before
    assert begun_for(out) == ABOUT


@pytest.mark.parametrize("content", [b"{}\n", b"text of mine\n", b'{"version":99,"about":{}}\n'])
def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path, content: bytes) -> None:
    partial = tmp_path / "out.partial"
    partial.write_bytes(content)
    with pytest.raises(ConfigError, match="no journal of this version"):
        Journal(tmp_path / "out", ABOUT, 3)
    assert partial.read_bytes() == content


def test_a_second_run_of_the_same_batch_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", ABOUT, 3)
    with pytest.raises(ConfigError, match="is written by another run"):
        Journal(tmp_path / "out", ABOUT, 3)
    append(journal, 0)
    journal.close()
    Journal(tmp_path / "out", ABOUT, 3).close()


def test_a_journal_without_a_row_is_not_left_behind(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out", ABOUT, 3)
    journal.close()
    journal.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Journal(tmp_path / "none/out", ABOUT, 3)


def test_an_older_result_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    journal = Journal(out, ABOUT, 2)
    append(journal, 1)
    assert out.read_text() == "old"
    append(journal, 0)
    journal.finish()
    journal.close()
    assert ids(out) == [0, 1]


def test_a_run_killed_while_it_finishes_finishes_the_next_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    journal = Journal(out, ABOUT, 30)
    order = random.Random(1).sample(range(30), 30)
    for index in order:
        append(journal, index)
    journal.close()
    (tmp_path / "out.new").write_bytes(b'{"id": 0}\n{"i')
    again = Journal(out, ABOUT, 30)
    assert again.tally.lines == 30
    again.finish()
    again.close()
    assert ids(out) == list(range(30))
    assert list(tmp_path.iterdir()) == [out]
