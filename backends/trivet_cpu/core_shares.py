"""Divides the host's cores among the engines of this user that compute.

The contract: each engine has a claim, a file in a private temporary folder of the user, which it touches at
most once a second before a step. It says which CPUs the engine may use and how many cores it wants. Every
engine reads all claims and finds its own part by `divided`, a pure function of them: all agree without a lock
or a server. Parts are disjoint while there are cores for all; else each engine has one that it shares.
`num_threads` of a deployment is what it wants; without it an engine wants all cores.

A claim that was not touched for `IDLE_S` counts for nothing. So an idle engine leaves its cores to the others
and has them back within a second of its next step, and nobody has to clean up after a killed one. In that
second, and beside a step longer than `IDLE_S`, two engines may use the same core; the pool then works with
fewer threads (`kernels/crew.h`). Engines of other users or in other containers are not seen: give each its
own CPUs (cpuset).

A thread is not pinned to a core, and an engine alone is not held to any: beside another busy program the
kernel can then move a thread to a free core.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from trivet_cpu.host import Core, Host, usable_cpus
from trivet_cpu.private_folder import private_folder

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
IDLE_S = 5.0
FORGET_S = 3600.0  # a file that nobody touched for so long is removed
SUFFIX = ".claim"
UNFINISHED = ".new"  # a claim that is being written; it stays where its engine is killed then


class Claim(msgspec.Struct, frozen=True):
    """What one engine wants."""

    wanted: int  # cores
    cpus: frozenset[int]  # that it may use


def divided(claims: Mapping[str, Claim], cores: Sequence[Core], capacity: int) -> dict[str, tuple[Core, ...]]:
    """Cores of each claim by its name, at least one.

    Args:
        cores: of all claims, by node.
        capacity: how many may compute at once; less than `cores` under a cgroup's quota.
    """
    counts = _counts(claims, capacity)
    free = list(cores)
    parts: dict[str, tuple[Core, ...]] = {}
    for name in sorted(claims):  # names begin with the time of their claim: the oldest moves least
        usable = [core for core in free if core.cpus & claims[name].cpus]
        part = _near_each_other(usable, counts[name])
        if not part:  # more engines than cores, or its CPUs are all taken: it shares one
            allowed = [core for core in cores if core.cpus & claims[name].cpus] or list(cores)
            part = (allowed[len(parts) % len(allowed)],)
        parts[name] = part
        free = [core for core in free if core not in part]
    return parts


def _counts(claims: Mapping[str, Claim], capacity: int) -> dict[str, int]:
    """As many as wanted where that fits; who wants more than an equal part gets an equal part of the rest."""
    counts: dict[str, int] = {}
    left = capacity
    for place, name in enumerate(sorted(claims, key=lambda name: (claims[name].wanted, name))):
        counts[name] = max(1, min(claims[name].wanted, left // (len(claims) - place)))
        left -= counts[name]
    return counts


def _near_each_other(cores: Sequence[Core], count: int) -> tuple[Core, ...]:
    """`count` of them, or all: of the fullest node that has enough, else of the emptiest nodes."""
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    enough = [node for node in nodes.values() if len(node) >= count]
    if enough:
        return tuple(min(enough, key=len)[:count])
    by_size = sorted(nodes.values(), key=lambda node: -len(node))
    return tuple(core for node in by_size for core in node)[:count]


class CoreShare:
    """One engine's part of the cores."""

    def __init__(
        self,
        host: Host,
        wanted: int | None = None,
        folder: Callable[[], Path] = lambda: private_folder("trivet-cores"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Claims `wanted` cores; all where it is None."""
        self._host, self._wanted, self._make_folder, self._clock = host, wanted, folder, clock
        self._name = f"{time.time_ns():020d}-{secrets.token_hex(4)}{SUFFIX}"
        self._look_at_host()
        self._told = (self.num_threads, self.cpus)
        self._folder: Path | None = None
        try:
            self._folder = folder()
        except OSError as error:
            logger.warning("cores are not divided among the engines of this host: %s", error)

    def _look_at_host(self) -> None:
        """All that this process may use, until the claims are read."""
        self._affinity = usable_cpus()
        self._cores = self._host.cores(self._affinity)
        self._capacity = self._host.num_cpus(self._affinity)
        self._claim = Claim(min(self._wanted or self._capacity, self._capacity), self._affinity)
        self._take_all()
        self._refreshed_s = float("-inf")

    def _take_all(self) -> None:
        self._part = self._cores[: self._capacity]
        self._is_alone = True

    @property
    def num_threads(self) -> int:
        """A thread a core; exactly `wanted` where that is more than the host has."""
        if self._wanted is not None and (self._is_alone or self._wanted > self._capacity):
            return self._wanted
        return min(len(self._part), self._capacity)

    @property
    def cpus(self) -> frozenset[int]:
        """Of the part; all while no other engine computes."""
        if self._is_alone:
            return self._affinity
        return frozenset[int]().union(*(core.cpus for core in self._part)) & self._affinity

    def refresh(self) -> bool:
        """Look at the claims, at most once a second; True where the part has changed."""
        now_s = self._clock()
        if self._folder is None or 0 <= now_s - self._refreshed_s < REFRESH_S:
            return False
        self._refreshed_s = now_s
        try:
            claims = self._claims(self._folder, now_s)
        except OSError as error:
            logger.warning("cores are not divided among the engines of this host any more: %s", error)
            self._folder = None
            self._take_all()
        else:
            self._is_alone = len(claims) == 1
            self._part = divided(claims, self._cores, self._capacity)[self._name]
        after = (self.num_threads, self.cpus)
        if after == self._told:
            return False
        self._told = after
        logger.info("cpus=%s num_threads=%d alone=%s", sorted(after[1]), after[0], self._is_alone)
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """This thread, and those that it starts, on the part's CPUs."""
        if self.cpus == self._affinity:
            yield
            return
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, self.cpus)
        except OSError as error:  # the host has taken these CPUs from its group of processes
            logger.warning("cpus=%s are not to be had any more: %s", sorted(self.cpus), error)
            self._withdraw()
            self._look_at_host()
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, before)

    def close(self) -> None:
        """Give the cores back at once."""
        self._withdraw()
        self._folder = None

    def _withdraw(self) -> None:
        if self._folder is not None:
            with suppress(OSError):  # a claim that is left is forgotten once it is old
                (self._folder / self._name).unlink(missing_ok=True)

    def _claims(self, folder: Path, now_s: float) -> dict[str, Claim]:
        """Raises: OSError where there is no place for claims, and none can be made."""
        try:
            self._touch(folder, now_s)
        except OSError:  # somebody has emptied /tmp
            self._folder = folder = self._make_folder()
            self._touch(folder, now_s)
        return self._read(folder, now_s)

    def _touch(self, folder: Path, now_s: float) -> None:
        file = folder / self._name
        try:
            os.utime(file, (now_s, now_s))
        except FileNotFoundError:  # the first step, or the first after so long that it was removed
            scratch = file.with_suffix(UNFINISHED)
            scratch.write_bytes(msgspec.json.encode(self._claim))
            os.utime(scratch, (now_s, now_s))
            scratch.rename(file)

    def _read(self, folder: Path, now_s: float) -> dict[str, Claim]:
        """Claims of engines that compute, and its own."""
        claims = {self._name: self._claim}
        for file in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{UNFINISHED}")):
            try:
                age_s = now_s - file.stat().st_mtime
                if age_s > FORGET_S and file.name != self._name:
                    file.unlink()
                elif age_s < IDLE_S and file.suffix == SUFFIX:
                    claims[file.name] = msgspec.json.decode(file.read_bytes(), type=Claim)
            except (FileNotFoundError, msgspec.DecodeError):
                continue  # it ended just now
        return claims
