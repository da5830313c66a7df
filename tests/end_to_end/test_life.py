"""A deployment's life with real processes: updated under load, unloaded and woken, beside a broken plugin."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from trivet.demo_model import find_demo_model
from trivet.errors import Unsupported

if TYPE_CHECKING:
    from conftest import Site

BODY = {"model": "m", "prompt": "Hello", "temperature": 0, "max_tokens": 40, "ignore_eos": True}


class Crowd:
    """Clients that ask on and on; every answer but a whole one is kept."""

    def __init__(self, site: Site) -> None:
        self.url = f"{site.base_url}/v1/completions"
        self.num_answers = 0
        self.wrong: list[str] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,)) for n in range(6)]
        for thread in self._threads:
            thread.start()

    def _ask(self, stream: bool) -> None:
        while not self._is_over.is_set():
            answer = httpx2.post(self.url, json={**BODY, "stream": stream}, timeout=60)
            is_whole = answer.text.endswith("data: [DONE]\n\n") if stream else answer.status_code == 200
            if not is_whole:
                self.wrong.append(f"{answer.status_code} {answer.text[-300:]}")
            self.num_answers += 1

    def go(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)


def test_an_update_under_load_fails_no_request(site: Site) -> None:
    site.serve()
    site.launch("m", "null", 2, **{"options.step_ms": "3"})
    before = site.engine_pids()
    crowd = Crowd(site)
    try:
        site.wait_for("requests are answered", lambda: crowd.num_answers > 20)
        done = site.run("update", "m", "--set", "max_num_seqs=32", "--timeout", "100")
        assert done.returncode == 0, done.stderr
        site.wait_for("the old ones are gone", lambda: not set(before) & set(site.engine_pids()))
        answered = crowd.num_answers
        site.wait_for("the new ones answer", lambda: crowd.num_answers > answered + 20)
    finally:
        crowd.go()
    assert crowd.wrong == []
    with site.client() as client:
        deployment = client.deployments.get("m")
    assert [i.generation for i in deployment.instances] == [2, 2]
    assert deployment.settings["max_num_seqs"] == "32"


def test_what_nobody_uses_is_unloaded_and_a_request_brings_it_back(site: Site) -> None:
    site.serve()
    site.launch("m", "null", idle_timeout_s="1")
    site.wait_for("it is asleep", lambda: "asleep" in site.run("ps").stdout)
    site.wait_for("its engine is gone", lambda: not site.engine_pids())
    for stream in (False, True):
        answer = httpx2.post(f"{site.base_url}/v1/completions", json={**BODY, "stream": stream}, timeout=60)
        assert answer.status_code == 200, answer.text
    events = site.run("events", "m").stdout
    assert "no request for 1 s" in events
    assert "a request woke it" in events


@pytest.fixture
def broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution whose plugin `tpu` raises as it is imported."""
    (tmp_path / "trivet_tpu.py").write_text("raise OSError('libtpu.so: cannot open shared object file')\n")
    info = tmp_path / "trivet_tpu-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trivet-tpu\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[trivet.plugins]\ntpu = trivet_tpu\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")


def test_a_plugin_that_cannot_be_imported_is_one_backend_less(site: Site, broken_plugin: None) -> None:
    site.serve()
    site.launch("m", "null")
    with site.client() as client:
        (faulty,) = (device for device in client.devices() if device.kind == "tpu")
        assert "libtpu.so" in (faulty.unusable_because or "")
        with pytest.raises(Unsupported, match=r"'tpu' cannot be used: .*libtpu.so.*uninstall trivet-tpu"):
            client.deployments.create(str(find_demo_model()), name="t", backend="tpu")
        client.deployments.create(str(find_demo_model()), name="t", backend="tpu,null")
    site.wait_ready("t")
