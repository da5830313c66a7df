"""Counts of web processes: right, summed over all of them, and of what has ended not for ever."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet import metrics
from trivet_registry.instance_state import InstanceState as State
from trivet_registry.instances_store import move_instance
from trivet_web.metrics.web_metrics import ENDED_S, WebMetrics, prepare_folder

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient

TTFT = metrics.TIME_TO_FIRST_TOKEN
LABELS = ("m", "i")


def count_of(web_metrics: WebMetrics) -> int:
    return sum(web_metrics.totals()[TTFT.name][0].counts)


def test_value_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    mine = WebMetrics()
    for value in (TTFT.buckets[0], TTFT.buckets[0] * 1.01, TTFT.buckets[-1] * 2):
        mine.observe(TTFT, LABELS, value)
    counts = mine.totals()[TTFT.name][0].counts
    assert counts[0] == 1
    assert counts[1] == 1
    assert counts[-1] == 1


def test_repeated_observation_counts_and_sums_each() -> None:
    mine = WebMetrics()
    mine.observe(TTFT, LABELS, 0.5, times=4)
    (series,) = mine.totals()[TTFT.name]
    assert (sum(series.counts), series.total) == (4, 2.0)


def test_processes_are_summed_also_when_one_has_ended(tmp_path: Path) -> None:
    """Also where the later one was given the pid of the one that ended, as both have it here."""
    ended = WebMetrics(tmp_path)
    ended.observe(TTFT, LABELS, 1.0)
    ended.close()
    mine = WebMetrics(tmp_path)
    mine.observe(TTFT, LABELS, 1.0)
    try:
        assert count_of(mine) == 2
        assert count_of(mine) == 2  # reading changes nothing
    finally:
        mine.close()


def test_saves_at_one_time_disturb_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of one process beside its own thread, and beside another's."""
    monkeypatch.setattr("trivet_web.metrics.web_metrics.SAVE_INTERVAL_S", 0.0)
    both = WebMetrics(tmp_path), WebMetrics(tmp_path)
    for one in both:
        one.observe(TTFT, LABELS, 1.0)
    for _ in range(200):
        for one in both:
            one.save()
    for one in both:
        one.close()
    assert count_of(both[0]) == 2
    assert "is not written" not in caplog.text


def test_full_disk_ends_no_saving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "totals"  # no folder stands for no room: each write is an OSError
    mine = WebMetrics(folder)
    mine.count(metrics.HTTP_REQUESTS, "GET", "/", "200")
    mine.save()
    mine.save()
    assert caplog.text.count("is not written") == 1
    folder.mkdir()
    mine.close()
    assert list(folder.iterdir())


def test_file_that_was_cut_hides_no_other(tmp_path: Path) -> None:
    ended = WebMetrics(tmp_path)
    ended.observe(TTFT, LABELS, 1.0)
    ended.close()
    (tmp_path / "9-00000000.totals").write_bytes(b"\x91")
    mine = WebMetrics(tmp_path)
    try:
        assert count_of(mine) == 1
    finally:
        mine.close()


def test_totals_of_an_earlier_server_are_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "totals"
    prepare_folder(folder)
    before = WebMetrics(folder)
    before.count(metrics.HTTP_REQUESTS, "GET", "/", "200")
    before.close()
    assert list(folder.iterdir())
    prepare_folder(folder)
    assert not list(folder.iterdir())


class Clock:
    """Seconds, as the test sets them."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_of_instances_that_have_ended_nothing_is_kept_for_ever(tmp_path: Path) -> None:
    """Neither of those that another process told of, which has ended, too."""
    clock = Clock()
    other = WebMetrics(tmp_path)
    other.observe(TTFT, ("m", "theirs"), 1.0)
    other.close()
    mine = WebMetrics(tmp_path, clock)
    try:
        for instance in ("lives", "ours"):
            mine.observe(TTFT, ("m", instance), 1.0)
        mine.count(metrics.HTTP_REQUESTS, "GET", "/", "200")
        for now_s, expected in (
            (0.0, {"lives", "ours", "theirs"}),
            (ENDED_S - 1, {"lives", "ours", "theirs"}),
            (ENDED_S + 1, {"lives"}),
            (3 * ENDED_S, {"lives"}),
        ):
            clock.now_s = now_s
            mine.totals()
            mine.keep(["lives"])
            totals = mine.totals()
            assert {series.labels[1] for series in totals[TTFT.name]} == expected
            assert len(totals[metrics.HTTP_REQUESTS.name]) == 1
        mine.close()
        prepare_folder(tmp_path)  # the files of all
        mine.save()
        assert {series.labels[1] for series in WebMetrics(tmp_path).totals()[TTFT.name]} == {"lives"}
    finally:
        mine.close()


def test_a_site_that_wakes_and_unloads_all_day_keeps_the_series_of_none_that_has_ended(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivet_web.metrics.web_metrics.ENDED_S", 0.0)
    engine = site.start_engine()
    body = {"model": "demo", "prompt": "a", "max_tokens": 2}
    assert site_client.post("/v1/completions", json=body).status_code == 200
    label = f'instance="{engine.instance}"'
    assert label in site_client.get("/metrics").text
    with site.database.session() as session:
        for next_state in (State.DRAINING, State.STOPPING, State.STOPPED):
            move_instance(session, engine.instance, next_state)
    eventually(lambda: label not in site_client.get("/metrics").text, what="it is forgotten")
    assert 'http_requests_total{method="POST"' in site_client.get("/metrics").text
