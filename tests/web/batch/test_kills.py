"""`trivet generate` killed at any moment and given again: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivet.demo_model import find_demo_model

pytestmark = pytest.mark.faults

NUM_LINES = 300
NUM_KILLS = 20
DEADLINE_S = 60.0
# Forks before any thread is there, so that twenty runs need not import everything twenty times.
FORK_SERVER = """
import os, sys
from trivet import cli
import trivet.llm, trivet_null.runner, trivet_web.batch.command
import trivet_web.batch.offline_site, trivet_web.batch.run
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        sys.stderr = open(os.devnull, "w")
        os._exit(cli.main([*sys.argv[1:], *line.split()]))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Runner:
    """Starts the same command again and again."""

    def __init__(self, arguments: list[str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"

    def start(self, step_ms: int = 10) -> int:
        """The pid."""
        assert self._server.stdin is not None
        self._server.stdin.write(f"--set options.step_ms={step_ms}\n")
        self._server.stdin.flush()
        return int(self._read())

    def exit_code(self) -> int:
        """Negative: the signal."""
        return int(self._read())

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(DEADLINE_S)
        self._server.stdout.close()

    def _read(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[tuple[Runner, Path]]:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for number in range(NUM_LINES):
            body = {"prompt": f"line {number}", "max_tokens": 1 + number % 7, "ignore_eos": True}
            one = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write("broken\n" if number % 50 == 49 else json.dumps(one) + "\n")
    settings = ["--backend", "null", "--set", "max_num_seqs=8"]
    runner = Runner(["generate", str(find_demo_model()), *settings, "-i", str(source), "-o", str(out)])
    yield runner, out
    runner.close()


def num_rows(out: Path) -> int:
    journal = out.with_name(f"{out.name}.partial")
    return max(journal.read_bytes().count(b"\n") - 1, 0) if journal.exists() else 0


def test_twenty_kills_lose_nothing_and_double_nothing(batch: tuple[Runner, Path]) -> None:
    runner, out = batch
    rng = random.Random(time.time_ns())
    kept, killed = 0, 0
    for _ in range(NUM_KILLS):
        pid = runner.start()
        wanted, end = kept + rng.choice([0, 0, 1, 5, 20]), time.monotonic() + rng.uniform(0.0, 0.5)
        while num_rows(out) < wanted or time.monotonic() < end:
            if out.exists():
                break
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        killed += runner.exit_code() == -signal.SIGKILL
        assert out.exists() or num_rows(out) >= kept, "answered lines are never lost"
        kept = num_rows(out)
        if out.exists():
            break
    assert killed >= 3, "it must have been killed on its way"
    if not out.exists() or num_rows(out):
        runner.start()
        assert runner.exit_code() == 1, "some lines are broken"
    results = [json.loads(text) for text in out.read_text().splitlines()]
    wanted = [None if number % 50 == 49 else f"r{number}" for number in range(NUM_LINES)]
    assert [result["custom_id"] for result in results] == wanted
    for number, result in enumerate(results):
        if wanted[number] is None:
            assert result["error"]["line"] == number + 1
        else:
            assert result["response"]["body"]["usage"]["completion_tokens"] == 1 + number % 7
    assert sorted(path.name for path in out.parent.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_an_interrupt_keeps_what_there_is_and_says_so(batch: tuple[Runner, Path]) -> None:
    runner, out = batch
    pid = runner.start(step_ms=100)  # it must not be done before the signal comes
    end = time.monotonic() + DEADLINE_S
    while num_rows(out) < 20:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(pid, signal.SIGINT)
    assert runner.exit_code() == 130
    kept = num_rows(out)
    assert 20 <= kept < NUM_LINES
    runner.start()
    assert runner.exit_code() == 1
    assert len(out.read_text().splitlines()) == NUM_LINES
