"""One pass over the input: its form, its lines, its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trivet.errors import ConfigError, RequestError
from trivet_web.batch import input_file
from trivet_web.batch.input_file import FormName, read_lines, scan, sha256_of_start

Source = Callable[..., Path]
A = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}


def test_the_first_object_decides_the_form(source: Source) -> None:
    assert scan(source("broken", A, {"prompt": "x"})).form is FormName.BATCH
    assert scan(source("[1]", {"prompt": "x"}, A)).form is FormName.SIMPLE
    assert scan(source({"url": "/v1/completions"})).form is FormName.BATCH
    assert scan(source()).form is FormName.SIMPLE


def test_blank_lines_are_counted_in_numbers_and_not_as_lines(source: Source) -> None:
    file = source("", '{"prompt": "a"}', "  ", '{"prompt": "b"}')
    assert [(line.index, line.number) for line in read_lines(file)] == [(0, 2), (1, 4)]
    assert scan(file).num_lines == 2


def test_a_last_line_needs_no_end(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b'{"prompt": "a"}\r\n{"prompt": "b"}')
    assert [line.data for line in read_lines(file)] == [b'{"prompt": "a"}', b'{"prompt": "b"}']


def test_a_mark_at_the_start_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert [line.data for line in read_lines(file)] == [b'{"prompt": "a"}']
    assert scan(file).size_bytes == 19, "the fingerprint is of all bytes"


def test_the_fingerprint_is_of_all_bytes(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MAX_LINE_BYTES", 16)
    file = source("x" * 50, "", '{"prompt": "a"}')
    data = file.read_bytes()
    found = scan(file)
    assert (found.size_bytes, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert sha256_of_start(file, 20) == hashlib.sha256(data[:20]).hexdigest()


@pytest.mark.parametrize("excess", [0, 1, 16, 17, 40])
def test_a_line_that_is_too_long_is_one_line_without_data(
    source: Source, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    monkeypatch.setattr(input_file, "MAX_LINE_BYTES", 16)
    file = source("a" * (15 + excess), "b")
    long, short = read_lines(file)
    assert (long.data is None) == (excess > 0)
    assert (short.index, short.number, short.data) == (1, 2, b"b")


@pytest.mark.parametrize(
    "lines",
    [
        ("x", A, {**A, "custom_id": "b"}, {**A, "body": {"model": "m"}}),
        ({"prompt": "a", "id": 5}, "x", {"prompt": "b"}, {"prompt": "c", "id": 5}),
        ({"prompt": "a"}, "x", {"prompt": "b", "id": "0"}, {"prompt": "c", "id": 0}),
    ],
)
def test_two_lines_of_one_id_are_refused_by_number(source: Source, lines: tuple[object, ...]) -> None:
    first = 2 if lines[0] == "x" else 1
    with pytest.raises(RequestError, match=f"lines {first} and 4 have the same id"):
        scan(source(*lines))


def test_lines_without_an_id_are_not_each_other_s_twins(source: Source) -> None:
    nameless = {"url": "/v1/completions"}
    assert scan(source(A, nameless, nameless)).num_lines == 3
    assert scan(source({"prompt": "a"}, {"prompt": "a"})).num_lines == 2


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        scan(tmp_path / "none")


def test_a_hundred_thousand_lines_take_no_memory_to_speak_of(tmp_path: Path) -> None:
    """Their ids and numbers: 16 bytes each, and 16 more while twins are looked for."""
    import tracemalloc

    file = tmp_path / "in.jsonl"
    with file.open("w") as out:
        out.writelines(json.dumps({"id": f"line-{n}", "prompt": "x" * 50}) + "\n" for n in range(100_000))
    tracemalloc.start()
    try:
        assert scan(file).num_lines == 100_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
