"""The end of a batch, on a host that is full or goes down."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from batch_client import has_ended, line, rows, start, state, store_batch

from trivet_web.batch import online_site, round_robin
from trivet_web.batch.stored_run import BatchRun

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient


def test_a_failure_whose_files_cannot_be_made_at_once_stays_a_failure(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken up then are results with gaps, which look like those of fewer lines."""
    monkeypatch.setattr(round_robin, "AGAIN_S", 0.2)
    site.start_engine("--step-s", "0.05")
    batch_id = start(site_client, *(line(n, max_tokens=5) for n in range(400)))
    eventually(lambda: state(site_client, batch_id)["request_counts"]["completed"] > 20)
    is_full, make_files = threading.Event(), BatchRun._make_files

    def full(run: BatchRun) -> Any:
        if not is_full.is_set():
            is_full.set()
            raise OSError(28, "No space left on device")
        return make_files(run)

    def broken(answered: object) -> bool:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(BatchRun, "_make_files", full)
    monkeypatch.setattr(online_site, "_is_passing", broken)
    eventually(lambda: state(site_client, batch_id)["status"] in ("failed", "completed"))
    batch = state(site_client, batch_id)
    assert is_full.is_set()
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["message"] == "internal error; the server's log has it"
    assert batch["request_counts"]["total"] == 400
    assert len(rows(site_client, batch["output_file_id"])) == batch["request_counts"]["completed"] < 400


def test_all_of_a_batch_is_on_the_disk_before_its_results_are_removed(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may go down at any moment."""
    synced: list[str] = []
    before_removal: list[str] = []
    fsync, unlink = os.fsync, Path.unlink

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def removing(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".results":
            before_removal.extend(synced)
        unlink(path, missing_ok)

    site.start_engine()
    batch_id = store_batch(site, site_client, line(0), line(1, model="none"))
    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(Path, "unlink", removing)
    site_client.application.extensions["trivet"].wake_batches()
    eventually(has_ended(site_client, batch_id))
    eventually(lambda: before_removal, what="its results are removed")
    files = [state(site_client, batch_id)[f"{kind}_file_id"] for kind in ("output", "error")]
    assert {f"{file_id}.data" for file_id in files} <= set(before_removal)
    assert {"files", "batches"} <= set(before_removal), "their names"
    assert any(name.startswith(f"{batch_id}.") for name in before_removal), "and the batch itself"
