"""What must hold when something dies: kill -9 of each part, under a running stream."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

import httpx2
import psutil
import pytest

pytestmark = pytest.mark.faults

GOES_ON = {
    "model": "m",
    "prompt": "Hello",
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


class Stream(threading.Thread):
    """A streamed completion, read to its end."""

    def __init__(self, site: Any, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._url = f"{site.base_url}/v1/completions"
        self._body = {**GOES_ON, "max_tokens": max_tokens}
        self.lines: list[str] = []
        self.start()
        site.wait_for("the stream has begun", lambda: len(self.lines) > 5)

    def run(self) -> None:
        with httpx2.stream("POST", self._url, json=self._body, timeout=60) as response:
            self.lines.extend(line for line in response.iter_lines() if line)


@pytest.fixture
def serving(site: Any) -> Any:
    site.serve()
    site.launch("m", "null", **{"options.step_ms": "1"})  # a stream lasts for seconds
    return site


def kill_all_but(serving: Any, pid: int) -> None:
    for process in serving.processes():
        if process.pid != pid:
            with suppress(psutil.NoSuchProcess):  # it has ended with its parent
                process.kill()


def test_a_killed_engine_ends_its_streams_with_an_error_and_is_restarted(serving: Any) -> None:
    stream = Stream(serving, max_tokens=7500)
    (pid,) = serving.engine_pids()
    os.kill(pid, signal.SIGKILL)
    stream.join(30)
    assert not stream.is_alive()
    assert '"error"' in stream.lines[-1]
    assert "engine_lost" in stream.lines[-1]
    assert " ended while " in stream.lines[-1], "seen by its connection, not by its silence"
    serving.wait_ready("m")
    assert serving.engine_pids() != [pid]
    events = serving.run("events", "m").stdout
    assert "signal 9" in events or "SIGKILL" in events


def test_a_killed_supervisor_touches_no_stream_and_adopts_its_engine(serving: Any) -> None:
    stream = Stream(serving, max_tokens=3000)
    (engine,) = serving.engine_pids()
    old = serving.supervisor_pid()
    os.kill(old, signal.SIGKILL)
    stream.join(120)
    assert stream.lines[-1] == "data: [DONE]"
    serving.wait_for("a new supervisor is up", lambda: serving.supervisor_pid_or_none() not in (None, old))
    serving.wait_ready("m")
    assert serving.engine_pids() == [engine]


def test_metrics_answer_while_the_supervisor_is_stopped(serving: Any) -> None:
    supervisor = serving.supervisor_pid()
    os.kill(supervisor, signal.SIGSTOP)

    def supervisor_is_reported_down() -> bool:
        text = httpx2.get(f"{serving.base_url}/metrics", timeout=10).text
        return "trivet:supervisor_up 0.0" in text

    serving.wait_for("metrics say that the supervisor is down", supervisor_is_reported_down, 30)
    with suppress(ProcessLookupError):  # it was replaced for its silence
        os.kill(supervisor, signal.SIGCONT)


def test_everything_killed_at_once_leaves_engines_that_the_next_serve_adopts(serving: Any) -> None:
    (engine,) = serving.engine_pids()
    kill_all_but(serving, engine)
    serving.parent.wait(30)
    serving.wait_for("only the engine is left", lambda: [p.pid for p in serving.processes()] == [engine])
    serving.serve()
    serving.wait_ready("m")
    assert serving.engine_pids() == [engine]


def test_ctrl_c_leaves_no_process(serving: Any) -> None:
    assert serving.stop() == 0
    assert not serving.processes()


def test_a_second_serve_refuses_and_names_the_first(serving: Any) -> None:
    second = serving.run("serve", "--port", "0")
    assert second.returncode != 0
    assert str(serving.parent.pid) in second.stderr


def test_stop_all_works_without_a_supervisor(serving: Any) -> None:
    (engine,) = serving.engine_pids()
    kill_all_but(serving, engine)
    serving.parent.wait(30)
    done = serving.run("stop", "--all")
    assert done.returncode == 0, done.stderr
    serving.wait_for("nothing is left", lambda: not serving.processes())


def test_an_engine_whose_sockets_were_deleted_is_reached_by_a_web_server_that_comes_anew(
    serving: Any,
) -> None:
    (engine,) = serving.engine_pids()
    sockets = [file for file in (serving.home / "run").glob("engine-*") if file.is_socket()]
    assert len(sockets) == 3
    for file in sockets:
        file.unlink()
    serving.wait_for("they are bound again", lambda: all(file.is_socket() for file in sockets))
    for pid in serving._pids_of("trivet_web"):
        os.kill(pid, signal.SIGKILL)
    serving.wait_for("a new web server is up", serving._answers)
    body = {"model": "m", "prompt": "Hello", "max_tokens": 4}
    answer = httpx2.post(f"{serving.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert serving.engine_pids() == [engine]
