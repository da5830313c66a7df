"""What operators meet: a disk that is full, a model that is stopped while it streams."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from trivet.errors import TrivetError

if TYPE_CHECKING:
    from conftest import Site

pytestmark = pytest.mark.faults

BODY = {"model": "m", "prompt": "Hello", "temperature": 0, "max_tokens": 20, "ignore_eos": True}
NUM_STREAMS = 20


class SmallDisk:
    """A file system of 64 MB with a home on it, which can be filled to the last byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"

    def fill(self) -> None:
        with self.ballast.open("wb", buffering=0) as out:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        out.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self.ballast.unlink()


@pytest.fixture
def small_disk() -> Iterator[SmallDisk]:
    with tempfile.TemporaryDirectory(prefix="tv") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("only root may mount a small disk")
        try:
            yield SmallDisk(Path(folder))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def complete(site: Site, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{site.base_url}/v1/completions", json={**BODY, **fields}, timeout=60)


def test_serving_goes_on_while_the_disk_is_full(small_disk: SmallDisk, site: Site) -> None:
    site.home = small_disk.folder
    site.log = Path(tempfile.gettempdir()) / f"{small_disk.folder.name}.log"
    site.serve()
    site.launch("m", "null", 2)
    small_disk.fill()
    assert [complete(site, stream=stream).status_code for stream in (False, True)] == [200, 200]
    os.kill(site.engine_pids()[0], signal.SIGKILL)
    site.wait_for("it is gone", lambda: len(site.engine_pids()) == 1)
    for _ in range(20):
        assert complete(site).status_code == 200, "by the other replica"
    with site.client() as client, pytest.raises(TrivetError, match=r"full|cannot be written|locked"):
        client.deployments.scale("m", 3)
    assert site.supervisor_pid_or_none() is not None
    small_disk.free()
    site.wait_for("it is replaced", lambda: len(site.engine_pids()) == 2)
    site.wait_ready("m", 2)
    events = site.run("events", "m").stdout
    assert "SIGKILL" in events, "what happened meanwhile is told"
    assert site.stop() == 0
    site.log.unlink()


def test_ctrl_c_on_a_full_disk_leaves_no_process_and_the_next_serve_comes_up(
    small_disk: SmallDisk, site: Site
) -> None:
    """It took a minute and a half, and the next ended in a traceback."""
    site.home = small_disk.folder
    site.log = Path(tempfile.gettempdir()) / f"{small_disk.folder.name}.log"
    site.serve()
    site.launch("m", "null", 2)
    small_disk.fill()
    assert site.stop() == 0
    assert not site.processes()
    told = site.log.read_text()
    assert "its engines have ended" in told
    assert "Traceback" not in told
    site.serve()
    small_disk.free()
    site.wait_ready("m", 2)
    assert site.stop() == 0
    site.log.unlink()


def test_a_registry_that_somebody_holds_locked_ends_no_engine(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch is told meanwhile: else engines would take themselves for orphans."""
    monkeypatch.setenv("TRIVET_ORPHAN_TIMEOUT_S", "6")
    site.serve()
    site.launch("m", "null", 2)
    before = site.engine_pids()
    with closing(sqlite3.connect(site.home / "registry.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        site.wait_for("the supervisor says what it lacks", lambda: "locked" in problem(site))
        began_s = time.monotonic()
        site.wait_for("twice the patience of an orphan", lambda: time.monotonic() > began_s + 12)
        assert complete(site).status_code == 200
        holder.execute("ROLLBACK")
    site.wait_for("it works again", lambda: problem(site) == "")
    assert site.engine_pids() == before


def problem(site: Site) -> str:
    with site.client() as client:
        return client.status().supervisor.problem


def test_a_stop_drains_until_its_deadline_then_ends_streams_with_an_error(site: Site) -> None:
    site.serve()
    site.launch("m", "null", **{"options.step_ms": "20", "max_num_seqs": str(NUM_STREAMS)})
    ends: list[str] = []
    begun = threading.Semaphore(0)

    def read(max_tokens: int) -> None:
        body = {**BODY, "stream": True, "max_tokens": max_tokens}
        with httpx2.stream("POST", f"{site.base_url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            last = next(lines)
            begun.release()
            for last in lines:  # noqa: B007
                pass
        ends.append(last)

    lengths = [150 if n % 4 == 0 else 6000 for n in range(NUM_STREAMS)]
    readers = [threading.Thread(target=read, args=(length,)) for length in lengths]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert begun.acquire(timeout=60)
    stopping = threading.Thread(target=site.run, args=("stop", "m", "--timeout", "8"))
    stopping.start()
    site.wait_for("it drains", lambda: "draining" in site.states("m"))
    refused = complete(site)
    assert refused.status_code == 503
    assert "draining" in refused.json()["error"]["message"]
    for thread in (*readers, stopping):
        thread.join(120)
    assert len(ends) == NUM_STREAMS
    assert ends.count("data: [DONE]") == lengths.count(150), "those that could be finished"
    assert sum('"error"' in end and "instance_stopped" in end for end in ends) == lengths.count(6000)
    assert not site.engine_pids()
