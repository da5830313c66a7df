"""Which devices a launch may take together: one a rank. A plan and a placement ask the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trivet.contract import Backend, DeviceInfo
from trivet.engine import backend_answers
from trivet.errors import Unsupported


def device_groups(
    backend: Backend,
    found: Sequence[DeviceInfo],
    wanted: str | None,
    num_ranks: int,
    left_on: Callable[[DeviceInfo], DeviceInfo],
) -> list[list[DeviceInfo]]:
    """Groups of devices to try, each with one device a rank.

    Args:
        wanted: one device or several, with commas, by uid or index; where several hosts have one of that
            name, with the host's before it (`gpu1/0`). None: any.
        left_on: the device with as many free bytes as nobody has a claim to.

    Raises: Unsupported.
    """
    if wanted:
        named = [_named(backend, found, name.strip()) for name in wanted.split(",")]
        _check_named(named, wanted, num_ranks)
        return [named]
    usable = backend_answers.usable_devices(backend, found, num_ranks)
    if num_ranks == 1:
        return [[device] for device in usable]
    by_host: dict[str, list[DeviceInfo]] = {}
    for one in usable:
        by_host.setdefault(one.host, []).append(one)
    groups = [
        sorted(devices, key=lambda d: -left_on(d).free_bytes)[:num_ranks]
        for devices in by_host.values()
        if len(devices) >= num_ranks
    ]
    if not groups:
        most = max(by_host, key=lambda host: len(by_host[host]))
        raise Unsupported(
            f"tensor_parallel_size {num_ranks} needs {num_ranks} devices of one host; the most are "
            f"{len(by_host[most])}, on {most}"
        )
    return groups


def _check_named(named: Sequence[DeviceInfo], wanted: str, num_ranks: int) -> None:
    """Raises: Unsupported."""
    twice = [d.uid for n, d in enumerate(named) if d in named[:n]]
    if twice:
        raise Unsupported(f"device {wanted!r} names {twice[0]} twice; each rank needs one of its own")
    hosts = {d.host for d in named}
    if len(hosts) > 1:
        raise Unsupported(f"device {wanted!r} is on {len(hosts)} hosts; ranks of one engine run on one host")
    if len(named) != num_ranks:
        raise Unsupported(
            f"device {wanted!r} is {len(named)} device{'s' * (len(named) > 1)} and tensor_parallel_size "
            f"{num_ranks} needs {num_ranks}; name as many, or set tensor_parallel_size={len(named)}"
        )


def _named(backend: Backend, found: Sequence[DeviceInfo], name: str) -> DeviceInfo:
    """Raises: Unsupported, also where devices of several hosts have this name."""
    meant = [d for d in found if name == d.uid] or [d for d in found if name in _short_names(d)]
    if len({d.host for d in meant}) > 1:
        named = ", ".join(d.uid for d in meant)
        raise Unsupported(f"device {name!r} of {backend.name} is on several hosts; name one of them: {named}")
    if not meant:
        for host in found:
            if _is_host(host) and name.startswith(f"{host.host}/"):
                raise Unsupported(f"device {name} of {backend.name} cannot be had: {host.unusable_because}")
        have = ", ".join(f"{d.index} ({d.uid})" for d in found if not _is_host(d)) or "none"
        raise Unsupported(f"backend {backend.name} has no device {name!r}; it has: {have}")
    device = meant[0]
    if device.unusable_because is not None:
        raise Unsupported(f"device {name} of {backend.name} is unusable: {device.unusable_because}")
    return device


def _short_names(device: DeviceInfo) -> tuple[str, ...]:
    """By index, and as its own host names it: what was pinned before the site had several hosts."""
    if not device.host:
        return (str(device.index),)
    if _is_host(device):
        return ()
    return str(device.index), device.uid.removeprefix(f"{device.host}/"), f"{device.host}/{device.index}"


def _is_host(device: DeviceInfo) -> bool:
    """Whether it stands for a host of which no device is known, and says why."""
    return bool(device.host) and device.uid == f"{device.host}/?"
