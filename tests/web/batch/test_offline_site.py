"""The API without a server."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet.errors import Unavailable
from trivet_web.batch.forms import Answered, Request
from trivet_web.batch.offline_site import LEFT_BEHIND_S, PREFIX, EngineEnded, OfflineSite

if TYPE_CHECKING:
    from conftest import Eventually


def open_llm(**settings: object) -> LLM:
    return LLM(find_demo_model(), backend="null", max_model_len=512, **settings)


@pytest.fixture
def site() -> Iterator[OfflineSite]:
    site = OfflineSite(open_llm(), ["m", "other"], num_threads=4)
    yield site
    site.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tv") as folder:
        yield Path(folder)


def test_a_long_folder_for_temporary_files_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    site = OfflineSite(open_llm(), ["m"], num_threads=2)
    try:
        assert ask(site).status == 200
    finally:
        site.close()


def ask(site: OfflineSite, **body: object) -> Answered:
    data = json.dumps({"model": "m", "prompt": "Hi", "max_tokens": 3, **body}).encode()
    return site.answer(Request("/v1/completions", data))


def test_a_request_is_answered_as_over_http(site: OfflineSite) -> None:
    answered = ask(site)
    assert answered.status == 200
    assert json.loads(answered.body)["usage"]["completion_tokens"] == 3
    assert answered.request_id
    assert ask(site, model="other").status == 200
    assert ask(site, model="gpt").status == 404
    assert ask(site, temperature=-1).status == 400


def test_its_folder_is_not_missed_while_it_works(site: OfflineSite, caplog: pytest.LogCaptureFixture) -> None:
    """A warning a second told that figures could not be written."""
    deadline_s = time.monotonic() + 60
    while len(site._web.history.read(60)[1]) < 3:
        assert ask(site).status == 200
        assert time.monotonic() < deadline_s, "nothing is sampled"
    assert "is not written" not in caplog.text


def test_many_threads_may_ask_at_a_time(site: OfflineSite) -> None:
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda n: ask(site, max_tokens=1 + n % 5), range(64)))
    counts = [json.loads(one.body)["usage"]["completion_tokens"] for one in done]
    assert counts == [1 + n % 5 for n in range(64)]


def test_structured_outputs_are_carried_out_as_by_an_engine_process(site: OfflineSite) -> None:
    answered = ask(site, structured_outputs={"choice": ["red", "green"]}, max_tokens=9)
    assert answered.status == 200, answered.body
    assert json.loads(answered.body)["choices"][0]["text"] in ("red", "green")


def test_an_engine_that_ends_is_no_answer() -> None:
    site = OfflineSite(open_llm(**{"options.device_lost_step": "8"}), ["m"], num_threads=2)
    try:
        with pytest.raises(EngineEnded, match="instance offline"):
            ask(site, max_tokens=50)
        with pytest.raises(EngineEnded):
            ask(site)
    finally:
        site.close()


def test_an_engine_that_cannot_begin_is_told_and_leaves_no_thread(eventually: Eventually) -> None:
    llm, before = open_llm(**{"options.device_lost_step": "1"}), set(threading.enumerate())
    with pytest.raises(Unavailable, match="the engine's loop does not run"):
        OfflineSite(llm, ["m"], num_threads=2)
    eventually(lambda: set(threading.enumerate()) <= before, what="its threads have ended")


def test_nothing_lies_about_while_it_runs_and_old_leftovers_go(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    old, new = short_folder / f"{PREFIX}old", short_folder / f"{PREFIX}new"
    for folder in (old, new):
        folder.mkdir()
    long_ago = time.time() - LEFT_BEHIND_S - 1
    os.utime(old, (long_ago, long_ago))
    site = OfflineSite(open_llm(), ["m"], num_threads=2)
    try:
        assert list(short_folder.iterdir()) == [new]
        assert ask(site).status == 200
    finally:
        site.close()
