"""Which tokens of a prompt stay where a request says that it may be cut."""

from __future__ import annotations

import pytest

from trivet_web.api.truncation import truncated, truncation_of

END = frozenset({9})


@pytest.mark.parametrize(
    ("ids", "limit", "kept"),
    [
        ([1, 2, 3, 4], 2, [1, 2]),
        ([1, 2, 3, 9], 2, [1, 9]),
        ([1, 2, 3, 9], 1, [9]),
        ([1, 9, 3, 4], 3, [1, 9, 3]),
        ([1, 9], 2, [1, 9]),
        ([1, 9], 5, [1, 9]),
        ([1, 2, 3, 4, 5, 6, 7, 8], -1, [1, 2, 3, 4]),
    ],
)
def test_the_start_stays_with_the_mark_of_the_end(ids: list[int], limit: int, kept: list[int]) -> None:
    assert truncated(ids, truncation_of(limit, 0), 5, END) == kept


@pytest.mark.parametrize(("limit", "kept"), [(2, [3, 9]), (5, [1, 2, 3, 9]), (None, [1, 2, 3, 9])])
def test_without_marks_the_end_stays(limit: int | None, kept: list[int]) -> None:
    assert truncated([1, 2, 3, 9], truncation_of(limit, 0), 5) == kept
