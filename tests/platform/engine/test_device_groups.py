"""Ranks of one engine run on one host, whichever has enough devices."""

from __future__ import annotations

import re
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


def test_a_short_name_that_several_hosts_have_is_refused_with_theirs() -> None:
    found = [*gpus("a", 1, 2), *gpus("b", 1)]
    told = "device '0' of cuda is on several hosts; name one of them: a/g0, b/g0"
    with pytest.raises(Unsupported, match=re.escape(told)):
        groups(found, 1, "0")
    with pytest.raises(Unsupported, match="'g0' of cuda is on several hosts; name one of them: a/g0, b/g0"):
        groups(found, 1, "g0")
    assert groups(found, 1, "1") == [["a/g1"]]
    assert groups(found, 1, "b/0") == [["b/g0"]]
    assert groups(found, 1, "b/g0") == [["b/g0"]]


def test_what_was_pinned_before_the_site_had_several_hosts_is_found() -> None:
    silent = DeviceInfo("cuda", 0, "b/?", "b", "", 0, 0, frozenset(), (), "host b does not answer", "b")
    assert groups([*gpus("a", 1), silent], 1, "g0") == [["a/g0"]]
    assert groups([*gpus("a", 1), silent], 1, "0") == [["a/g0"]]


def test_of_a_device_of_a_host_that_does_not_answer_that_is_told() -> None:
    silent = DeviceInfo("cuda", 0, "b/?", "b", "", 0, 0, frozenset(), (), "host b does not answer", "b")
    with pytest.raises(Unsupported, match="device b/g0 of cuda cannot be had: host b does not answer"):
        groups([*gpus("a", 1), silent], 1, "b/g0")
    with pytest.raises(Unsupported, match=r"cuda has no device 'c/g0'; it has: 0 \(a/g0\)$"):
        groups([*gpus("a", 1), silent], 1, "c/g0")


def test_a_slash_in_the_name_of_a_device_here_is_no_host() -> None:
    mig = DeviceInfo("cuda", 0, "MIG-GPU-1/1/0", "a slice", "sm_90", 100, 9, frozenset({"bf16"}))
    assert groups([mig], 1, "MIG-GPU-1/1/0") == [["MIG-GPU-1/1/0"]]
    with pytest.raises(Unsupported, match="has no device '1/0'"):
        groups([mig], 1, "1/0")
