"""A line that ends its engine is found among those beside it, and is not asked for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from batch_client import line, rows, start, state

from trivet_web.answers.answer import MAX_ATTEMPTS
from trivet_web.batch.suspects import Suspects

if TYPE_CHECKING:
    from conftest import Engine, Eventually, Site
    from flask.testing import FlaskClient

pytestmark = pytest.mark.faults

DEADLY = 13
NUM_LINES = 12


def test_of_those_whose_engine_ended_one_is_asked_at_a_time() -> None:
    suspects = Suspects()
    assert all(suspects.may_ask("a", index) for index in range(3))
    suspects.lost("a", 0)
    suspects.lost("b", 0)
    assert suspects.may_ask("a", 0)
    assert not suspects.may_ask("b", 0), "of all batches"
    assert suspects.may_ask("b", 1), "nothing is known of it"
    suspects.came_back("b", 1)
    assert not suspects.may_ask("b", 0)
    suspects.came_back("a", 0)
    assert suspects.may_ask("b", 0)
    suspects.cleared("b", 0)
    suspects.came_back("b", 0)
    assert suspects.may_ask("b", 0)
    assert [suspects.lost("a", 0) for _ in range(MAX_ATTEMPTS - 1)] == [False] * (MAX_ATTEMPTS - 2) + [True]


def test_a_line_that_ends_each_engine_fails_and_the_others_of_all_batches_do_not(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    def start_engine() -> None:
        engines.append(site.start_engine("--step-s", "0.02", "--dies-of", str(DEADLY)))

    def has_ended() -> bool:
        if engines[-1].process.poll() is not None:
            start_engine()
        return all(state(site_client, one)["status"] == "completed" for one in batches)

    engines: list[Engine] = []
    start_engine()
    lines = [line(n, max_tokens=20, **({"seed": DEADLY} if n == 5 else {})) for n in range(NUM_LINES)]
    good = [line(n, max_tokens=20) for n in range(NUM_LINES)]
    batches = [start(site_client, *lines), start(site_client, *good)]
    eventually(has_ended, within_s=120, what="both batches have ended")
    assert len(engines) > MAX_ATTEMPTS, "each chance cost an engine"
    first, second = (state(site_client, one) for one in batches)
    assert second["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    assert first["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES - 1, "failed": 1}
    (failed,) = rows(site_client, first["error_file_id"])
    assert failed["custom_id"] == "r5"
    assert failed["response"]["status_code"] == 503
    assert failed["response"]["body"]["error"]["code"] == "engine_lost"
