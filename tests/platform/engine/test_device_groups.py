"""Ranks of one engine run on one host, whichever has enough devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trivet.contract import DeviceInfo
from trivet.engine.device_groups import device_groups
from trivet.errors import Unsupported

CUDA = cast("Any", SimpleNamespace(name="cuda"))


def gpus(host: str, *free: int) -> list[DeviceInfo]:
    return [
        DeviceInfo("cuda", n, f"{host}/g{n}", "a GPU", "sm_90", 100, size, frozenset({"bf16"}), host=host)
        for n, size in enumerate(free)
    ]


def groups(found: Sequence[DeviceInfo], num_ranks: int, wanted: str | None = None) -> list[list[str]]:
    made = device_groups(CUDA, found, wanted, num_ranks, lambda device: device)
    return [[device.uid for device in group] for group in made]


def test_each_host_with_enough_devices_gives_a_group_of_its_freest() -> None:
    found = [*gpus("a", 1, 9, 5), *gpus("b", 7), *gpus("c", 2, 3)]
    assert groups(found, 2) == [["a/g1", "a/g2"], ["c/g1", "c/g0"]]


def test_devices_of_two_hosts_are_no_group() -> None:
    found = [*gpus("a", 1), *gpus("b", 1)]
    with pytest.raises(Unsupported, match=r"needs 2 devices of one host; the most are 1, on a$"):
        groups(found, 2)
    with pytest.raises(Unsupported, match=r"'a/g0,b/g0' is on 2 hosts; ranks of one engine run on one host"):
        groups(found, 2, "a/g0,b/g0")


def test_every_device_of_every_host_is_a_place_for_one_rank() -> None:
    assert groups([*gpus("a", 1, 2), *gpus("b", 1)], 1) == [["a/g0"], ["a/g1"], ["b/g0"]]
