"""A deployment on the fake NPU through the whole platform: serve, supervisor, engine process, HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port

from trivet.client import Client
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

DEADLINE_S = 240.0
BACKEND = "ascend-fake-npu"
TRIVET = "import sys; from trivet.cli import main; sys.exit(main(sys.argv[1:]))"


def wait_for(what: str, is_done: Callable[[], object], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S:.0f} s; {log.read_text()[-3000:]}"
        time.sleep(0.1)


@pytest.fixture
def client() -> Iterator[tuple[Client, Path]]:
    """Of a site of its own, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="tv") as folder:  # short: socket paths hold 107 bytes
        home, log = Path(folder), Path(folder, "serve.log")
        port = free_port()
        with log.open("wb") as stream:
            parent = subprocess.Popen(
                [sys.executable, "-c", TRIVET, "serve", "--port", str(port)],
                env={**os.environ, "TRIVET_HOME": folder, "TRIVET_PORT": str(port)},
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

        def made() -> Client:
            token = (home / "run" / "token").read_text().strip()
            return Client(f"http://127.0.0.1:{port}", token, timeout_s=DEADLINE_S)

        def answers() -> bool:
            assert parent.poll() is None, log.read_text()
            try:
                with made() as client:
                    return client.status().supervisor.up
            except (TrivetError, OSError):
                return False

        try:
            wait_for("the server answers", answers, log)
            with made() as client:
                yield client, log
        finally:
            parent.send_signal(signal.SIGINT)
            parent.wait(DEADLINE_S)


def test_a_launched_model_answers_a_chat(client: tuple[Client, Path]) -> None:
    """Bfloat16 through the fused operations; the self-test and the agreement check of a start pass before."""
    api, log = client
    settings = {"max_model_len": "512", "max_num_seqs": "4", "max_num_batched_tokens": "128"}
    api.deployments.create(
        str(find_demo_model()), name="smol", backend=BACKEND, replicas=1, settings=settings
    )

    def is_ready() -> bool:
        states = [str(instance.state) for instance in api.instances.list("smol")]
        assert "failed" not in states, log.read_text()[-3000:]
        return states == ["ready"]

    wait_for("the instance is ready", is_ready, log)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = api.chat.complete("smol", question, temperature=0, max_tokens=8)
    assert "Paris" in answer.text
