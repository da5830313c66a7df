"""The adapters (LoRA) of an engine: read with its settings, planned for as slots, loaded one to a slot."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.adapters import DEFAULT_RANK, MAX_RANK, LoRARequest
from trivet.contract import NO_ADAPTERS, AdapterSlots, Feature, Runner
from trivet.engine_settings import EngineSettings
from trivet.errors import Unsupported, UnsupportedParameter
from trivet.models.adapter_files import PARTS, AdapterFiles, read_adapter

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec

logger = logging.getLogger(__name__)


def read_adapters(settings: EngineSettings, spec: ModelSpec) -> dict[str, AdapterFiles]:
    """Headers of all, by name, in the order of their slots. Raises: as `read_adapter`; Unsupported."""
    found = {name: read_adapter(folder, spec, name) for name, folder in settings.adapters.items()}
    most = MAX_RANK if settings.max_lora_rank is None else settings.max_lora_rank
    for name, adapter in found.items():
        if adapter.rank > most:
            raise Unsupported(
                f"adapter {name!r} ({adapter.path}) has rank {adapter.rank} and max_lora_rank is {most}"
                + (f"; set it to {adapter.rank}" if adapter.rank <= MAX_RANK else "; no larger one is served")
            )
    return found


def adapter_slots(settings: EngineSettings, adapters: Mapping[str, AdapterFiles]) -> AdapterSlots:
    """As many and as large as those given need; more slots than that are for adapters of any kind."""
    num_slots = settings.max_loras or len(adapters)
    if not num_slots:
        return NO_ADAPTERS
    rank = settings.max_lora_rank or max((each.rank for each in adapters.values()), default=DEFAULT_RANK)
    used = {part for each in adapters.values() for part in each.parts}
    is_full = num_slots == len(adapters)
    return AdapterSlots(num_slots, rank, tuple(part for part in PARTS if part in used or not is_full))


def check_runner_takes(runner: Runner, slots: AdapterSlots, backend: str) -> None:
    """Before it has loaded anything. Raises: Unsupported where it takes no adapters and there are slots."""
    if slots.num_slots and Feature.LORA not in runner.features:
        raise Unsupported(
            f"backend {backend} serves no adapters (LoRA) with this model; use another backend, or merge "
            "them into the model's weights"
        )


def load_adapters(runner: Runner, adapters: Mapping[str, AdapterFiles], model: str) -> None:
    """Each into its slot. Raises: Unsupported; WeightsError."""
    for slot, (name, adapter) in enumerate(adapters.items(), 1):
        runner.load_adapter(slot, adapter.weights)
        logger.info("adapter=%s slot=%d rank=%d parts=%s", name, slot, adapter.rank, ",".join(adapter.parts))
        if not model.lower().startswith(_last_part(adapter.base_model)):
            logger.warning("adapter=%s was trained for %r and runs on %r", name, adapter.base_model, model)


def load_late(
    runner: Runner, taken: dict[str, int], slots: AdapterSlots, spec: ModelSpec, request: LoRARequest
) -> AdapterFiles:
    """Into a free slot, which is `taken` then.

    Raises: UnsupportedParameter where none is free; as `read_adapter` and `Runner.load_adapter`.
    """
    slot = next((slot for slot in range(1, slots.num_slots + 1) if slot not in taken.values()), None)
    if slot is None:
        raise UnsupportedParameter(
            f"adapter {request.name[:200]!r} has no slot: {len(taken)} of {slots.num_slots} are taken; start "
            f"the engine with max_loras {slots.num_slots + 1}",
            param="lora_request",
        )
    adapter = read_adapter(request.path, spec, request.name)
    runner.load_adapter(slot, adapter.weights)
    taken[request.name] = slot
    return adapter


def check_same_files(request: LoRARequest, loaded: Path) -> None:
    """Of a request by the name of an adapter, which was loaded from that resolved path.

    Raises: UnsupportedParameter.
    """
    asked = Path(os.path.realpath(os.path.expanduser(request.path)))
    if asked != loaded:
        raise UnsupportedParameter(
            f"adapter {request.name[:200]!r} was loaded from {loaded} and the request has {asked}; "
            "give one of them another name",
            param="lora_request",
        )


def _last_part(name: str) -> str:
    """Of a repository or a folder, in lower case: a GGUF file's name begins with it."""
    return name.rstrip("/").rpartition("/")[2].lower()
