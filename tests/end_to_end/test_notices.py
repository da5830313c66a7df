"""What an engine warns of though it works reaches the API, `ps`, `doctor` and the support report."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Site

NOTICE = "rms_norm failed its self-test"


def test_a_context_that_the_kv_blocks_cut_short_is_told(site: Site) -> None:
    site.serve()
    site.launch("short", "null", num_gpu_blocks_override="2")
    site.launch("asked", "null", num_gpu_blocks_override="2", max_model_len="64")
    shown = site.run("ps").stderr
    assert "max_model_len is 128, all that 2 KV blocks of 128 tokens hold; the model's own is" in shown
    assert "asked" not in shown


def test_a_notice_of_a_running_engine_is_shown_and_ends_with_it(site: Site, tmp_path: Path) -> None:
    site.serve()
    site.launch("chat", "null", **{"options.notice": NOTICE})
    site.launch("quiet", "null")

    def told() -> tuple[str, ...]:
        with site.client() as client:
            (instance,) = client.instances.list("chat")
        return instance.notices

    site.wait_for("the notice is in the API", told)
    assert told() == (NOTICE,)
    listed = {each["name"]: each for each in json.loads(site.run("ps", "--json").stdout)}
    assert listed["chat"]["instances"][0]["notices"] == [NOTICE]
    assert listed["quiet"]["instances"][0]["notices"] == []
    shown = site.run("ps").stderr
    assert f"chat {listed['chat']['instances'][0]['id']}: {NOTICE}" in shown
    assert "quiet" not in shown
    found = json.loads(site.run("doctor", "--json").stdout)
    assert [each["text"] for each in found if each["check"].startswith("instance")] == [f"chat: {NOTICE}"]
    report = tmp_path / "report.tar.gz"
    assert site.run("diagnose", "chat", "-o", str(report)).returncode == 0
    with tarfile.open(report) as archive:
        for name in ("instances.json", "doctor.json"):
            member = archive.extractfile(f"diagnose/{name}")
            assert member is not None
            assert NOTICE in member.read().decode()
    assert site.run("stop", "chat").returncode == 0
    assert NOTICE not in site.run("ps", "--all").stderr
    assert site.stop() == 0
