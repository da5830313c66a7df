"""The drill: a site that serves is backed up, lost, and made again from the file."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from trivet.client import Client
from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site

QUESTION = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 16,
}


COUNTING = [{"role": "user", "content": "Count to a hundred."}]


def ask(site: Site, key: str) -> str:
    answer = httpx2.post(
        f"{site.base_url}/v1/chat/completions",
        json=QUESTION,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def lose_everything(site: Site) -> None:
    for process in site.processes():
        process.send_signal(signal.SIGKILL)
    assert site.parent is not None
    site.parent.wait(60)
    site.wait_for("nothing runs", lambda: not site.processes())
    for entry in site.home.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def test_a_lost_site_is_made_again_with_its_keys_and_models(site: Site, tmp_path: Path) -> None:
    site.serve()
    with site.client() as client:
        client.models.add(str(find_demo_model()), "smol", copy=True)
        client.deployments.create("smol:1", name="m", backend="cpu", settings={"max_num_seqs": "4"})
        site.wait_ready("m")
        client.users.create("alice", "a long password 1", role="admin")
        key = str(client.keys.create("ci", models=["m"]).key)
    before = ask(site, key)
    kept = {entry.name for entry in site.home.iterdir()}

    with Client(site.base_url, key, timeout_s=120) as client:
        stream = client.chat.stream("m", COUNTING, max_tokens=60, temperature=0)
        first = next(iter(stream)).text
        made = site.run("backup", str(tmp_path))
        assert made.returncode == 0, made.stderr
        assert (first + "".join(chunk.text for chunk in stream)).strip(), "it was served meanwhile"
    (file,) = tmp_path.glob("trivet-*.tar")

    refused = site.run("restore", str(file))
    assert refused.returncode != 0
    assert "runs already" in refused.stderr
    lose_everything(site)
    done = site.run("restore", str(file))
    assert done.returncode == 0, done.stderr
    lost = kept - {entry.name for entry in site.home.iterdir()}
    assert {name for name in lost if not name.startswith("registry.db")} <= {"run", "logs", site.log.name}
    site.serve()
    site.wait_ready("m")  # it is wanted, so it runs again
    assert ask(site, key) == before
    with site.client() as client:
        assert not client.models.verify("smol:1").problems
        assert client.audit.verify().fault is None
    assert site.stop() == 0


def test_a_backup_restored_beside_the_living_site_leaves_its_engines_alone(
    site: Site, home_of_module: Site, tmp_path: Path
) -> None:
    site.serve()
    site.launch("null", "null")
    engines = site.engine_pids()
    assert site.run("backup", str(tmp_path / "b.tar")).returncode == 0
    copy = home_of_module
    assert copy.run("restore", str(tmp_path / "b.tar")).returncode == 0
    copy.serve()
    copy.wait_ready("null")
    assert not set(copy.engine_pids()) & set(engines), "an engine of its own"
    with copy.client() as client:
        reasons = " ".join(str(event.reason) for event in client.events())
    assert f"of the home {site.home}, of which this registry is a copy" in reasons
    assert "adopted" not in reasons
    assert copy.run("stop", "--all").returncode == 0
    copy.stop()
    assert copy.run("stop", "--all").returncode == 0, "by itself, without a supervisor"
    assert site.engine_pids() == engines
    assert site.states("null") == ["ready"]
