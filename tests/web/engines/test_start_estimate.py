"""What Retry-After says of a deployment that starts."""

from __future__ import annotations

import pytest

from trivet_web.engines.routing import InstanceRow
from trivet_web.engines.start_estimate import LONGEST_S, seconds_until_ready


def row(state: str, in_state_s: float, loaded: float = 0.0) -> InstanceRow:
    return InstanceRow("a", state, in_state_s=in_state_s, loaded=loaded)


@pytest.mark.parametrize(
    ("rows", "wait_s"),
    [
        ([row("placing", 0.1)], 4),
        ([row("loading", 0.0)], 2),
        ([row("loading", 12.5)], 13),  # as long again
        ([row("loading", 12.0, loaded=0.75)], 4),
        ([row("loading", 12.0, loaded=1.0)], 2),
        ([row("loading", 900.0, loaded=0.1)], LONGEST_S),
        ([row("warming", 0.2)], 1),
        ([row("loading", 30.0), row("warming", 3.0)], 3),  # the first of them
        ([row("failed", 3.0), row("starting", 1.0)], 3),
    ],
)
def test_a_start_lasts_as_long_again_as_it_has(rows: list[InstanceRow], wait_s: int) -> None:
    assert seconds_until_ready(rows) == wait_s


@pytest.mark.parametrize(
    "rows", [[], [row("failed", 1.0)], [row("draining", 1.0), row("ready", 1.0)], [row("pending", 60.0)]]
)
def test_nobody_is_told_to_wait_for_what_may_never_come(rows: list[InstanceRow]) -> None:
    assert seconds_until_ready(rows) is None


def test_what_has_just_been_launched_is_soon_there() -> None:
    assert seconds_until_ready([row("pending", 0.5)]) == 5
