"""Batches in the real server: killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
from batch_client import CHAT, line

if TYPE_CHECKING:
    from conftest import Eventually, Server, Site

NUM_LINES = 800  # 5 s; what is done is told once a second, and the worker at work takes a while to find


def start(http: httpx2.Client, *lines: object) -> str:
    content = "".join(json.dumps(one) + "\n" for one in lines).encode()
    sent = http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    body = {"input_file_id": sent.raise_for_status().json()["id"], "endpoint": CHAT}
    return str(http.post("/v1/batches", json=body).raise_for_status().json()["id"])


def state(http: httpx2.Client, batch_id: str) -> dict[str, Any]:
    try:
        return dict(http.get(f"/v1/batches/{batch_id}").json())
    except httpx2.TransportError:  # the worker that answered was killed
        return {"status": "", "request_counts": {"completed": 0}}


def holder_of(site: Site) -> int:
    """The process that has the journal of a batch open."""
    journals = f"{site.settings.paths.stored}/batches/"
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # the process has ended, or is another's
            for fd in folder.iterdir():
                with suppress(FileNotFoundError):  # it was closed meanwhile
                    if os.readlink(fd).startswith(journals):
                        return int(folder.parent.name)
    return 0


def wait_for_holder(site: Site, eventually: Eventually) -> int:
    found: list[int] = []
    eventually(lambda: found.append(holder_of(site)) or found[-1], what="a worker runs it")
    return found[-1]


def test_a_killed_worker_s_batch_goes_on_in_another_and_no_line_is_lost(
    site: Site, start_server: Callable[..., Server], eventually: Eventually
) -> None:
    engine = site.start_engine("--step-s", "0.02")
    server = start_server(TRIVET_WEB_WORKERS="2")
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        batch_id = start(http, *(line(n, max_tokens=10) for n in range(NUM_LINES)))
        for num_before in (20, 150):
            eventually(lambda n=num_before: state(http, batch_id)["request_counts"]["completed"] > n, 30)  # type: ignore[misc]
            os.kill(wait_for_holder(site, eventually), signal.SIGKILL)
        eventually(lambda: state(http, batch_id)["status"] == "completed", 60, "another goes on")
        batch = state(http, batch_id)
        assert batch["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
        output = http.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    assert [json.loads(row)["custom_id"] for row in output] == [f"r{n}" for n in range(NUM_LINES)]
    assert engine.process.poll() is None
