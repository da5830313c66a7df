"""What the largest steps of earlier starts took of a device, kept in the home for the next plan; no torch.

A plan has to bound what a step takes before anything ran. The first start measures it, and whoever plans the
same model on the same kind of device with the same choices counts with that: more is left for KV, or a start
that was refused for a bound that was too low is not refused again. One file for each such case.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet import __version__
from trivet.contract import DeviceInfo, MemoryPart, Peaks, Runner, RunnerConfig
from trivet.optional_contract import MeasuresPeaks

if TYPE_CHECKING:
    from trivet.engine.placement import Placement
    from trivet.models.model_files import ModelFiles

logger = logging.getLogger(__name__)

MAX_SIZES = 32  # of steps and contexts that a file tells of, the newest


class PeakStore:
    """A folder of a home; None keeps and knows nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def told(
        self, config: RunnerConfig, backend: str, files: ModelFiles, devices: Sequence[DeviceInfo]
    ) -> RunnerConfig:
        """The config with what is known of it. Another host's engine has a home of its own."""
        if self._folder is None or devices[0].host:
            return config
        return replace(config, peaks=tuple(self._read(self._file(config, backend, files, devices))))

    def keep(self, runner: Runner, files: ModelFiles, placement: Placement) -> None:
        """What the runner has measured, if it has. Never raises: a start does not depend on it."""
        if self._folder is None or not isinstance(runner, MeasuresPeaks):
            return
        parts = tuple(MemoryPart(name, size) for name, size in sorted(runner.peaks().items()))
        if not parts:
            return
        plan = placement.plan
        found = Peaks(plan.max_num_batched_tokens, plan.max_model_len, parts)
        file = self._file(placement.config, placement.backend.name, files, placement.devices)
        known = self._read(file)
        if found in known:
            return
        others = [each for each in known if _size(each) != _size(found)][1 - MAX_SIZES :]
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode([*others, found]))
            os.replace(draft, file)
        except OSError as error:
            logger.warning("the peaks of this start are not kept for the next plan: %s", error)
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _file(
        self, config: RunnerConfig, backend: str, files: ModelFiles, devices: Sequence[DeviceInfo]
    ) -> Path:
        """By all that a step's memory depends on but `max_num_batched_tokens` and `max_model_len`.

        Those a plan resolves. Not by the number of KV blocks, which follows from what is left.
        """
        assert self._folder is not None
        depends = (
            (__version__, backend, config.dtype, config.kv_dtype, config.max_num_seqs),
            (config.max_logits_rows, config.block_size, config.tensor_parallel),
            sorted(config.options.items()),
            sorted({(each.name, each.arch, each.total_bytes, each.versions) for each in devices}),
            None if files.spec is None else astuple(files.spec),
            sorted((info.name, info.format, info.shape) for info in files.weights.tensors),
        )
        digest = hashlib.sha256(msgspec.json.encode(depends)).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def _read(self, file: Path) -> list[Peaks]:
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[Peaks])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s is not read, plans count with bounds: %s", file, error)
            return []


def _size(peaks: Peaks) -> tuple[int, int]:
    return peaks.max_num_batched_tokens, peaks.max_model_len


NOWHERE = PeakStore()
