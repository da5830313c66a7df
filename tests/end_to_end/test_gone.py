"""One side of a request goes away: the client, or an engine that is alive and does nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
from contextlib import suppress
from typing import Any

import pytest

from trivet.client import Client

pytestmark = pytest.mark.faults

PROMPT = {"model": "null", "prompt": "go on", "max_tokens": 4000, "ignore_eos": True}


def metric(site: Any, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"trivet:{name}{{"))


def num_running(client: Client) -> int | None:
    (instance,) = client.instances.list("null")
    return instance.load and instance.load.num_running


@pytest.fixture
def null_site(site: Any) -> Any:
    site.serve()
    site.launch("null", "null", **{"options.step_ms": "10"})  # so that a request lasts for 40 s
    return site


def test_client_that_hangs_up_leaves_no_sequence_and_no_block_behind(null_site: Any) -> None:
    for stream in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", null_site.port, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps({**PROMPT, "stream": stream}))
        if stream:
            connection.getresponse().read(2000)
        null_site.wait_for("it runs", lambda: metric(null_site, "num_requests_running") == 1)
        assert connection.sock is not None or stream
        connection.close()
        null_site.wait_for("it ends", lambda: metric(null_site, "num_requests_running") == 0, 20)
        null_site.wait_for("no block is held", lambda: metric(null_site, "kv_cache_usage_perc") == 0, 20)
        with null_site.client() as client:
            null_site.wait_for("the API says so", lambda: num_running(client) == 0, 20)


def test_frozen_engine_is_an_error_and_no_hang(null_site: Any) -> None:
    (pid,) = null_site.engine_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", null_site.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(PROMPT))
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        connection.close()
        assert (response.status, error["code"]) == (503, "engine_lost")
        ready = http.client.HTTPConnection("127.0.0.1", null_site.port, timeout=20)
        ready.request("GET", "/health/ready")
        assert ready.getresponse().status == 503
        ready.close()
    finally:
        with suppress(ProcessLookupError):  # it was killed for its silence
            os.kill(pid, signal.SIGCONT)
