"""An alias that is moved under load: its deployment gets the other version, and no request fails."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site


def test_moving_an_alias_updates_what_follows_it_without_a_failed_request(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "smollm2.gguf"
    shutil.copy(find_demo_model(), other)
    with other.open("ab") as file:
        file.write(b"\0" * 32)  # other content, the same model
    site.serve()
    failures: list[Exception] = []
    answers: list[str] = []
    ends = threading.Event()

    def ask() -> None:
        with site.client().with_options(max_retries=0) as client:
            while not ends.is_set():
                try:
                    done = client.completions.complete("chat", "The capital", max_tokens=20)
                    answers.append(done.choices[0].finish_reason or "")
                except Exception as error:  # which the test reports
                    failures.append(error)

    def versions(state: str) -> set[int]:
        return {i.generation for i in client.deployments.get("chat").instances if i.state == state}

    with site.client() as client:
        client.models.add(str(find_demo_model()), "smol")
        client.models.add(str(other), "smol")
        client.aliases.set("smol", "prod", 1)
        client.deployments.create("smol:prod", name="chat", backend="null", replicas=2)
        site.wait_ready("chat", 2)
        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        try:
            for move, generation in ((lambda: client.aliases.set("smol", "prod", 2), 2), (None, 3)):
                moved = move() if move else client.aliases.roll_back("smol", "prod")
                deployment = client.deployments.get("chat")
                assert (deployment.alias, deployment.version) == ("prod", moved.version)
                site.wait_for("the other version serves", lambda g=generation: versions("ready") == {g})
                before = len(answers)
                site.wait_for("it answers", lambda n=before: len(answers) > n + 20 or failures)
        finally:
            ends.set()
            for asker in askers:
                asker.join()
    assert not failures
    assert set(answers) == {"length"}
