"""The bound of decoding is that of a free host, also where it was first measured on a busy one."""

from __future__ import annotations

import pytest

from trivet_cpu import bandwidth


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_best", {})


def test_the_machine_reads_memory() -> None:
    assert 1e8 < bandwidth.read_bandwidth(1) < 1e13


def test_the_most_that_was_seen_is_told_and_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([2e9, 9e9, 3e9])
    monkeypatch.setattr(bandwidth, "_measure", lambda num_threads: next(seen))
    assert bandwidth.read_bandwidth(2) == 2e9
    assert bandwidth.read_bandwidth(2) == 2e9, "not measured again at once"
    monkeypatch.setattr(bandwidth, "AGAIN_S", 0.0)
    assert bandwidth.read_bandwidth(2) == 9e9
    assert bandwidth.read_bandwidth(2) == 9e9, "a busy host does not lower it"
