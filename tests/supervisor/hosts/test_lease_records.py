"""What an agent knows of leases over its own death."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from trivet.launching import ProcessIdentity
from trivet_supervisor.hosts import lease_records
from trivet_supervisor.hosts.lease_records import LeaseRecords
from trivet_supervisor.launchers.process_table import start_time

PLACE = lease_records._this_place()


def us() -> ProcessIdentity:
    began = start_time(os.getpid())
    assert began is not None
    return ProcessIdentity(os.getpid(), began)


def of_place(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: str) -> LeaseRecords:
    monkeypatch.setattr(lease_records, "_this_place", lambda: msgspec.structs.replace(PLACE, **changes))
    return LeaseRecords(folder)


def test_what_was_told_to_die_is_known_for_good(tmp_path: Path) -> None:
    LeaseRecords(tmp_path).kill(["one"])
    again = LeaseRecords(tmp_path)
    assert again.is_killed("one")
    assert not again.is_killed("two")


def test_a_process_that_does_not_run_is_gone(tmp_path: Path) -> None:
    records = LeaseRecords(tmp_path)
    assert not records.why_untold("never started")
    records.started("one", ProcessIdentity(us().pid, us().start_time - 1))
    assert not records.why_untold("one"), "its pid is another's"
    records.started("one", us())
    assert "may not look at it" in records.why_untold("one")
    records.forget("one")
    assert not records.why_untold("one")


def test_only_where_it_was_started_it_can_be_told_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_place(tmp_path, monkeypatch, machine="m1").started("one", us())
    assert "on another machine under this name" in of_place(
        tmp_path, monkeypatch, machine="m2", boot="b2"
    ).why_untold("one")
    assert "in another container" in of_place(tmp_path, monkeypatch, machine="m1", namespace="n2").why_untold(
        "one"
    )
    assert not of_place(tmp_path, monkeypatch, machine="m1", boot="b2").why_untold("one"), "it was rebooted"


def test_a_record_that_cannot_be_read_is_no_end(tmp_path: Path) -> None:
    records = LeaseRecords(tmp_path)
    records.started("one", us())
    (tmp_path / "started" / "one.json").write_bytes(b"{")
    assert "cannot be read" in records.why_untold("one")
