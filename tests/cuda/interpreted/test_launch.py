"""`trivet launch` of the interpreted backend: a real server, supervisor and engine process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port

from trivet.client import Client
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import TrivetError

TRIVET = str(Path(sys.executable).with_name("trivet"))
DEADLINE_S = 120.0
SETTINGS = {
    "dtype": "f32",
    "max_model_len": "256",
    "max_num_seqs": "2",
    "max_num_batched_tokens": "32",
    "num_gpu_blocks_override": "40",
    "options.graphs": "on",
    "options.self_test": "on",
}

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {f"t{n}": n for n in range(160)}, "unk_token": "t0"},
}


class Site:
    """A home whose server finds the interpreted backend by the PYTHONPATH of these tests."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = free_port()
        self._environ = {**os.environ, "TRIVET_HOME": str(home), "TRIVET_PORT": str(self._port)}
        with (home / "serve.log").open("wb") as log:
            self.parent = subprocess.Popen([TRIVET, "serve"], env=self._environ, stdout=log, stderr=log)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TRIVET, *arguments], env=self._environ, capture_output=True, text=True, timeout=DEADLINE_S
        )

    def client(self) -> Client:
        token = (self._home / "run/token").read_text().strip()
        return Client(f"http://127.0.0.1:{self._port}", token, timeout_s=DEADLINE_S)

    def is_up(self) -> bool:
        assert self.parent.poll() is None, (self._home / "serve.log").read_text()
        try:
            with self.client() as client:
                return client.status().supervisor.up
        except (TrivetError, OSError):
            return False


def wait_for(is_done: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline_s, f"{what}: not within {DEADLINE_S:.0f} s"
        time.sleep(0.05)


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        site = Site(Path(home))
        try:
            wait_for(site.is_up, "the server answers")
            yield site
        finally:
            site.run("stop", "--all")
            site.parent.terminate()
            site.parent.wait(DEADLINE_S)


@pytest.mark.timeout(600)
def test_a_launched_model_answers_and_is_stopped(site: Site, tmp_path: Path) -> None:
    model = make_tiny_model("qwen3", tmp_path)
    (model / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    given = [argument for name, value in SETTINGS.items() for argument in ("--set", f"{name}={value}")]
    done = site.run("launch", str(model), "--name", "tiny", "--backend", "cuda-interpreted", *given)
    assert done.returncode == 0, done.stderr
    (deployment,) = json.loads(site.run("ps", "--json").stdout)
    (instance,) = deployment["instances"]
    assert (instance["state"], instance["backend"]) == ("ready", "cuda-interpreted")
    assert instance["device_uids"] == ["interpreted"]
    assert instance["notices"] == []
    with site.client() as client:
        answer = client.completions.complete(
            "tiny", "t1 t2 t3", max_tokens=5, temperature=0.0, ignore_eos=True
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    done = site.run("stop", "tiny")
    assert done.returncode == 0, done.stderr
