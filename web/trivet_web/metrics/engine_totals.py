"""What engines have done in all their lives: counters that never go back, whoever starts again.

An engine counts from its start. The totals of one attempt (its lease) only grow, so the largest value seen
of each is the truest, and an instance's is the sum over its attempts. Largest-of and sum give the same in
any order, so web processes need no agreement: each keeps what it has seen in a file of its own, written
before a page shows it, and reads the files of all, also of those that have ended.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from trivet.messages import EngineLoad

logger = logging.getLogger(__name__)
TOTALS_FOLDER = "engine-totals"  # in the run directory
_SUFFIX = ".engines"
COUNTERS = (
    "num_steps",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_queries",
    "prefix_hits",
    "num_swaps",
    "num_refused",
    "num_deadlines_passed",
)
_Attempts = dict[str, dict[str, int]]  # counters by lease; how sequences ended as "finished:REASON"
_FINISHED = "finished:"
_decoder = msgspec.msgpack.Decoder(dict[str, _Attempts])


class EngineTotals:
    """Thread-safe. `folder` None keeps everything in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, _Attempts] = {}  # by instance
        self._kept: frozenset[str] | None = None  # None: all
        name = f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"  # of nobody else, also where a pid is reused
        self._file = folder / name if folder else None
        self._written: bytes = b""
        self._unreadable: set[Path] = set()
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._merge_others()

    def observe(self, instance_id: str, lease: str, load: EngineLoad) -> None:
        """Take what an engine has told of its attempt."""
        told = {name: int(getattr(load, name)) for name in COUNTERS}
        told |= {_FINISHED + reason: count for reason, count in load.num_finished.items()}
        with self._lock:
            self._raise(instance_id, lease, told)

    def loads(self) -> dict[str, EngineLoad]:
        """By instance, with the counters only; all that any web process of this home has seen."""
        with self._lock:
            self._merge_others()
            self._save()  # before it is shown: who is asked next must not show less
            return {instance: _sum(attempts) for instance, attempts in self._seen.items()}

    def keep(self, instance_ids: Collection[str]) -> None:
        """Forget all others, from now on also what other processes say of them."""
        with self._lock:
            self._kept = frozenset(instance_ids)
            for instance in self._seen.keys() - self._kept:
                del self._seen[instance]

    def _raise(self, instance_id: str, lease: str, told: Mapping[str, int]) -> None:
        known = self._seen.setdefault(instance_id, {}).setdefault(lease, {})
        for name, value in told.items():
            known[name] = max(value, known.get(name, 0))

    def _merge_others(self) -> None:
        for instance, attempts in self._read_others():
            if self._kept is not None and instance not in self._kept:
                continue
            for lease, told in attempts.items():
                self._raise(instance, lease, told)

    def _read_others(self) -> Iterator[tuple[str, _Attempts]]:
        if self._file is None:
            return
        for file in self._file.parent.glob(f"*{_SUFFIX}"):
            if file == self._file or file in self._unreadable:
                continue
            try:
                yield from _decoder.decode(file.read_bytes()).items()
            except (OSError, msgspec.MsgspecError) as error:  # of another version, or cut by a power failure
                logger.warning("file=%s is left out: %s", file, error)
                self._unreadable.add(file)

    def _save(self) -> None:
        if self._file is None:
            return
        data = msgspec.msgpack.encode(self._seen)
        if data == self._written:
            return
        scratch = self._file.with_suffix(".new")
        try:
            scratch.write_bytes(data)
            scratch.replace(self._file)
        except OSError as error:  # a full disk; what is in memory serves on
            logger.warning("file=%s is not written: %s", self._file, error)
        else:
            self._written = data


def join_files(folder: Path, instance_ids: Collection[str] | None) -> None:
    """Called once before the web processes start: the files of earlier ones become one.

    Args: instance_ids: all others are forgotten; None: none.
    """
    if not folder.is_dir():
        return
    if old := list(folder.glob(f"*{_SUFFIX}")):
        joined = EngineTotals(folder)
        if instance_ids is not None:
            joined.keep(instance_ids)
        joined.loads()
        for file in old:
            file.unlink()


def _sum(attempts: _Attempts) -> EngineLoad:
    total: dict[str, int] = {}
    for told in attempts.values():
        for name, value in told.items():
            total[name] = total.get(name, 0) + value
    finished = {n.removeprefix(_FINISHED): v for n, v in total.items() if n.startswith(_FINISHED)}
    counters = {name: total.get(name, 0) for name in COUNTERS}
    return EngineLoad(num_finished=finished, **counters)
