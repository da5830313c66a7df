"""Cores divided among engines: by arithmetic, over a clock of our own, and between real processes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trivet_cpu.core_shares import FORGET_S, IDLE_S, REFRESH_S, Claim, CoreShare, divided
from trivet_cpu.host import Core, Host

DEADLINE_S = 60.0
ALL = frozenset(range(64))


def _cores(per_node: int, nodes: int = 1) -> list[Core]:
    return [Core(cpu // per_node, frozenset({cpu})) for cpu in range(per_node * nodes)]


def _cpus(parts: dict[str, tuple[Core, ...]]) -> dict[str, list[int]]:
    return {name: sorted(cpu for core in part for cpu in core.cpus) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((8,), {"0": [0, 1, 2, 3, 4, 5, 6, 7]}),
        ((8, 8), {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}),
        ((2, 8), {"0": [0, 1], "1": [2, 3, 4, 5, 6, 7]}),
        ((2, 3), {"0": [0, 1], "1": [2, 3, 4]}),
        ((8, 8, 8), {"0": [0, 1], "1": [2, 3, 4], "2": [5, 6, 7]}),
    ],
    ids=["alone", "two", "one wants less", "all fit", "a remainder"],
)
def test_cores_are_divided_by_what_is_wanted(wanted: tuple[int, ...], expected: dict[str, list[int]]) -> None:
    claims = {str(i): Claim(count, ALL) for i, count in enumerate(wanted)}
    assert _cpus(divided(claims, _cores(8), 8)) == expected


def test_more_engines_than_cores_share_them_evenly() -> None:
    parts = _cpus(divided({str(i): Claim(2, ALL) for i in range(5)}, _cores(2), 2))
    assert sorted(cpu for part in parts.values() for cpu in part) == [0, 0, 0, 1, 1] or sorted(
        cpu for part in parts.values() for cpu in part
    ) == [0, 0, 1, 1, 1]
    assert all(len(part) == 1 for part in parts.values())


def test_a_quota_bounds_the_sum_of_all_parts() -> None:
    parts = divided({"a": Claim(64, ALL), "b": Claim(64, ALL)}, _cores(16), 4)
    assert [len(part) for part in parts.values()] == [2, 2]


def test_a_part_lies_in_one_node_where_it_fits() -> None:
    claims = {"a": Claim(3, ALL), "b": Claim(4, ALL), "c": Claim(1, ALL)}
    parts = divided(claims, _cores(4, nodes=2), 8)
    assert {name: {core.node for core in part} for name, part in parts.items()} == {
        "a": {0},
        "b": {1},
        "c": {0},
    }
    (whole,) = divided({"a": Claim(6, ALL)}, _cores(4, nodes=2), 8).values()
    assert len(whole) == 6


def test_an_engine_gets_cores_that_it_may_use() -> None:
    claims = {"a": Claim(2, frozenset({2, 3})), "b": Claim(4, ALL)}
    assert _cpus(divided(claims, _cores(4), 4)) == {"a": [2, 3], "b": [0, 1]}


class Clock:
    """Seconds that stand until they are moved."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Each usable CPU is a core; no quota."""
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


def _share(host: Host, tmp_path: Path, clock: Clock, wanted: int | None = None) -> CoreShare:
    return CoreShare(host, wanted, lambda: tmp_path, clock)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_an_engine_that_does_not_compute_leaves_its_cores_to_the_other(host: Host, tmp_path: Path) -> None:
    clock = Clock()
    one, other = (_share(host, tmp_path, clock) for _ in range(2))
    every = frozenset(os.sched_getaffinity(0))
    assert not one.refresh()
    assert one.cpus == every
    assert other.refresh()
    assert not one.refresh(), "looked before a second had passed"
    clock.now_s += REFRESH_S
    assert one.refresh()
    assert one.cpus | other.cpus == every
    assert not one.cpus & other.cpus
    assert (one.num_threads, other.num_threads) == (len(one.cpus), len(other.cpus))
    clock.now_s += IDLE_S
    assert one.refresh()
    assert one.cpus == every


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_cores_of_a_closed_engine_are_free_at_once(host: Host, tmp_path: Path) -> None:
    clock = Clock()
    one, other = (_share(host, tmp_path, clock) for _ in range(2))
    one.refresh()
    other.refresh()
    one.close()
    clock.now_s += REFRESH_S
    assert other.refresh()
    assert other.cpus == os.sched_getaffinity(0)
    assert not one.refresh()


def test_the_number_of_threads_that_was_asked_for_is_kept_while_alone(host: Host, tmp_path: Path) -> None:
    share = _share(host, tmp_path, Clock(), wanted=99)
    share.refresh()
    assert share.num_threads == 99
    few = _share(host, tmp_path / "host", Clock(), wanted=1)
    few.refresh()
    assert few.num_threads == 1
    assert few.cpus == os.sched_getaffinity(0), "an engine alone is held to no core"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_only_the_step_is_held_to_the_part(host: Host, tmp_path: Path) -> None:
    before, clock = os.sched_getaffinity(0), Clock()
    _share(host, tmp_path, clock).refresh()
    share = _share(host, tmp_path, clock)
    share.refresh()
    assert share.cpus < before
    with share.held():
        assert os.sched_getaffinity(0) == share.cpus
    assert os.sched_getaffinity(0) == before


def test_a_claim_that_was_lost_is_made_again_and_old_ones_are_removed(host: Host, tmp_path: Path) -> None:
    clock = Clock()
    share = _share(host, tmp_path, clock)
    share.refresh()
    (claim,) = tmp_path.glob("*.claim")
    claim.unlink()
    old, unfinished = tmp_path / "0.claim", tmp_path / "1.new"
    for file in (old, unfinished):
        file.write_text("no claim at all")
        os.utime(file, (clock.now_s - FORGET_S - 1,) * 2)
    clock.now_s += REFRESH_S
    share.refresh()
    assert claim.exists()
    assert not old.exists()
    assert not unfinished.exists()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_cpus_that_the_host_took_away_are_done_without(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a group of processes whose cpuset shrinks while two engines have a part each."""
    before, clock = os.sched_getaffinity(0), Clock()
    _share(host, tmp_path, clock).refresh()
    share = _share(host, tmp_path, clock)
    share.refresh()
    lost = share.cpus

    def set_affinity(pid: int, cpus: Iterable[int]) -> None:
        if not set(cpus) - lost:
            raise OSError(errno.EINVAL, "Invalid argument")
        sched_setaffinity(pid, set(cpus) - lost)

    sched_setaffinity = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", set_affinity)
    monkeypatch.setattr("trivet_cpu.core_shares.usable_cpus", lambda: before - lost)
    try:
        with share.held():
            assert share.cpus == before - lost
        with share.held():
            pass
    finally:
        sched_setaffinity(0, before)
    clock.now_s += REFRESH_S
    assert share.refresh(), "threads are there for other CPUs"
    clock.now_s += REFRESH_S
    assert not share.refresh()
    assert not share.cpus & lost


def test_an_engine_whose_claim_has_no_place_any_more_has_all_cores(host: Host, tmp_path: Path) -> None:
    clock, folder = Clock(), tmp_path / "claims"

    def make() -> Path:
        folder.mkdir(exist_ok=True)
        return folder

    _share(host, make(), clock).refresh()
    share = CoreShare(host, None, make, clock)
    share.refresh()
    part = share.cpus
    shutil.rmtree(folder)
    clock.now_s += REFRESH_S
    share.refresh()
    assert list(folder.glob("*.claim")), "the folder is made again"
    shutil.rmtree(folder)
    folder.write_text("no folder")
    clock.now_s += REFRESH_S
    share.refresh()
    assert share.cpus == os.sched_getaffinity(0) >= part


def test_without_a_folder_an_engine_has_all_cores(host: Host) -> None:
    def refused() -> Path:
        raise PermissionError("no")

    share = CoreShare(host, None, refused)
    assert not share.refresh()
    assert share.cpus == os.sched_getaffinity(0)


ENGINE = """
import json, sys, time
from pathlib import Path
from trivet_cpu.core_shares import CoreShare
from trivet_cpu.host import Host
share = CoreShare(Host(), None, lambda: Path(sys.argv[1]))
while True:
    share.refresh()
    print(json.dumps(sorted(share.cpus)), flush=True)
    time.sleep(0.05)
"""


@contextmanager
def _engine(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _wait_for(process: subprocess.Popen[str], wanted: list[int]) -> None:
    """Until the engine says that these are its CPUs."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + DEADLINE_S
    said = ""
    while time.monotonic() < deadline_s:
        said = process.stdout.readline()
        if json.loads(said) == wanted:
            return
    raise AssertionError(f"waited for {wanted}, last heard {said}")


@pytest.mark.skipif(len(Host().cores(frozenset(os.sched_getaffinity(0)))) < 2, reason="needs two cores")
def test_two_engines_have_disjoint_cores_and_a_killed_one_s_come_back(tmp_path: Path) -> None:
    every = sorted(os.sched_getaffinity(0))
    with _engine(tmp_path) as one:
        _wait_for(one, every)
        with _engine(tmp_path) as other:
            parts = divided(
                {"0": Claim(len(every), frozenset(every)), "1": Claim(len(every), frozenset(every))},
                Host().cores(frozenset(every)),
                Host().num_cpus(frozenset(every)),
            )
            _wait_for(one, _cpus(parts)["0"])
            _wait_for(other, _cpus(parts)["1"])
            other.kill()
            _wait_for(one, every)
