"""What the largest steps of earlier starts took of a device, kept in the home for the next plan; no torch.

A plan has to bound what a step takes before anything ran. The first start measures it, and whoever plans the
same model on the same kind of device with the same choices counts with that: more is left for KV, or a start
that was refused for a bound that was too low is not refused again. One file for each such case and size of
step and context, put in place whole: starts at one time need no lock.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

import msgspec

from trivet import __version__
from trivet.contract import DeviceInfo, MemoryPart, Peaks, Runner, RunnerConfig
from trivet.optional_contract import MeasuresPeaks

if TYPE_CHECKING:
    from trivet.engine.placement import Placement
    from trivet.models.model_files import ModelFiles

logger = logging.getLogger(__name__)

MAX_SIZES = 32  # of steps and contexts that are kept of one case, the newest


class PeakStore:
    """A folder of a home; None keeps and knows nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._digested: tuple[ModelFiles, str] | None = None  # the last: one model is asked about many times

    def told(
        self, config: RunnerConfig, backend: str, files: ModelFiles, devices: Sequence[DeviceInfo]
    ) -> RunnerConfig:
        """The config with what is known of it. Another host's engine has a home of its own."""
        if self._folder is None or devices[0].host or not self._folder.is_dir():
            return config
        return replace(config, peaks=tuple(self._read(self._case(config, backend, files, devices))))

    def keep(self, runner: Runner, files: ModelFiles, placement: Placement) -> None:
        """What the runner has measured, if it has. Never raises: a start does not depend on it."""
        if self._folder is None or not isinstance(runner, MeasuresPeaks):
            return
        parts = tuple(MemoryPart(name, size) for name, size in sorted(runner.peaks().items()))
        if not parts:
            return
        plan = placement.plan
        found = Peaks(plan.max_num_batched_tokens, plan.max_model_len, parts)
        case = self._case(placement.config, placement.backend.name, files, placement.devices)
        file = self._folder / f"{case}-{found.max_num_batched_tokens}-{found.max_model_len}.json"
        draft = file.with_suffix(f".{os.getpid()}.{get_ident()}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(found))
            os.replace(draft, file)
            for old in self._files(case)[:-MAX_SIZES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("the peaks of this start are not kept for the next plan: %s", error)
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _case(
        self, config: RunnerConfig, backend: str, files: ModelFiles, devices: Sequence[DeviceInfo]
    ) -> str:
        """A digest of all that a step's memory depends on but `max_num_batched_tokens` and `max_model_len`.

        Those a plan resolves. Not by the number of KV blocks, which follows from what is left.
        """
        slots = config.adapters
        depends = (
            (__version__, backend, config.dtype, config.kv_dtype, config.max_num_seqs),
            (config.max_logits_rows, config.block_size, config.tensor_parallel),
            (slots.num_slots, slots.max_rank, slots.parts),
            sorted(config.options.items()),
            sorted({(each.name, each.arch, each.total_bytes, each.versions) for each in devices}),
            self._digest_of(files),
        )
        return hashlib.sha256(msgspec.json.encode(depends)).hexdigest()[:32]

    def _digest_of(self, files: ModelFiles) -> str:
        """Of its spec and 10,000 tensors or more."""
        if self._digested is None or self._digested[0] is not files:
            tensors = sorted((info.name, info.format, info.shape) for info in files.weights.tensors)
            content = (None if files.spec is None else astuple(files.spec), tensors)
            self._digested = files, hashlib.sha256(msgspec.json.encode(content)).hexdigest()
        return self._digested[1]

    def _files(self, case: str) -> list[Path]:
        """The oldest first."""
        assert self._folder is not None
        return sorted(self._folder.glob(f"{case}-*.json"), key=lambda file: file.stat().st_mtime_ns)

    def _read(self, case: str) -> list[Peaks]:
        try:
            return [msgspec.json.decode(file.read_bytes(), type=Peaks) for file in self._files(case)]
        except FileNotFoundError:  # the oldest was removed meanwhile
            return self._read(case)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning(
                "%s: %s-*.json are not read, plans count with bounds: %s", self._folder, case, error
            )
            return []


NOWHERE = PeakStore()
