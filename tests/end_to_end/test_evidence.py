"""What is left to look at when something went wrong: logs over restarts, and the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site

pytestmark = pytest.mark.faults

CANARY = "c4n4ry-Zx81-0815"


@pytest.fixture(scope="module")
def site(home_of_module: Site) -> Site:
    """Serves "m"; a secret stands in its settings, in its engine's environment and in its words."""
    site = home_of_module
    (site.home / "trivet.toml").write_text(f'[backend.null]\nenv = {{ HF_TOKEN = "{CANARY}" }}\n')
    site.serve()
    site.launch("m", "null", **{"options.notice": f"was given password={CANARY} by mistake"})
    return site


def read_archive(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            member.name.removeprefix("diagnose/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def test_logs_follow_the_next_attempt_and_keep_the_first_crash(site: Site, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    with shown.open("wb") as out:
        following = subprocess.Popen(
            [str(Path(sys.executable).with_name("trivet")), "logs", "m", "-f"], env=site.environ, stdout=out
        )
    try:
        site.wait_for("the log is shown", lambda: "first_token=" in shown.read_text())
        (engine,) = site.engine_pids()
        os.kill(engine, signal.SIGKILL)
        site.wait_for("the next one, too", lambda: shown.read_text().count("first_token=") == 2)
        first = site.run("logs", "m", "--first-crash")
        assert first.stdout.count("first_token=") == 1
        with site.client() as client:
            (instance,) = client.instances.list("m")
        assert site.run("update", "m", "--set", "max_num_seqs=9").returncode == 0
        site.wait_for("and its successor", lambda: shown.read_text().count("first_token=") == 3)
    finally:
        following.terminate()
        following.wait(30)
    assert "-2.log ====" in shown.read_text()
    assert (site.home / "logs" / "m" / f"{instance.id}-first-crash.log").exists()


def test_the_archive_explains_and_holds_no_secret(site: Site, tmp_path: Path) -> None:
    body = {"model": "m", "prompt": "Hello", "max_tokens": 3}
    assert httpx2.post(f"{site.base_url}/v1/completions", json=body).status_code == 200
    with site.client() as client:
        (instance,) = client.instances.list("m")
    with (site.home / "logs" / "m" / f"{instance.id}-{instance.attempt}.log").open("a") as out:
        out.write(f"Authorization: Bearer {CANARY}\nhome token {site.token}\n")
    file = tmp_path / "d.tar.gz"
    file.touch(0o644)  # the archive of an earlier time, which others may read

    def is_in_the_history() -> bool:
        told = "in the mean of 1" in site.run("diagnose", "m", "-o", str(file)).stdout
        return told and "time_to_first_token_seconds_sum" in read_archive(file)["history.json"]

    site.wait_for("the request is in the history", is_in_the_history)
    found = read_archive(file)
    assert file.stat().st_mode & 0o077 == 0
    everything = "\n".join(found.values())
    assert CANARY not in everything
    assert site.token not in everything
    assert "options.notice" in found["deployment.json"]
    assert '"fits": true' in found["plan.json"]
    assert "attempt 1" in found["events.json"]
    assert '"check": "clock"' in found["doctor.json"]
    assert "home token [removed]" in found[f"logs/{instance.id}.log"]


def test_a_queue_is_found_to_be_the_cause_of_a_slow_first_token(site: Site, tmp_path: Path) -> None:
    site.launch("narrow", "null", **{"options.step_ms": "20", "max_num_seqs": "1"})
    body = {"model": "narrow", "prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
    with ThreadPoolExecutor(5) as pool:
        answers = pool.map(lambda _: httpx2.post(f"{site.base_url}/v1/completions", json=body), range(5))
        assert {answer.status_code for answer in answers} == {200}

    told: list[str] = []

    def diagnose() -> bool:
        told.append(site.run("diagnose", "narrow", "-o", str(tmp_path / "d.tar.gz")).stdout)
        return "in the mean of 5" in told[-1]

    site.wait_for("all are in the history", diagnose)
    assert "cause: requests wait for their turn" in told[-1]
    assert "cure:  raise max_num_seqs" in told[-1]


def test_what_is_wrong_is_said_first(site: Site, tmp_path: Path) -> None:
    with site.client() as client:
        client.deployments.create(
            str(find_demo_model()), name="broken", backend="null", settings={"max_model_len": "1"}
        )
    site.wait_for("it has failed", lambda: site.states("broken") == ["failed"])
    done = site.run("diagnose", "broken", "-o", str(tmp_path / "d.tar.gz"))
    assert done.returncode == 1
    assert "is failed" in done.stdout.splitlines()[0]
    assert "max_model_len 1 is too short" in done.stdout.splitlines()[0]
