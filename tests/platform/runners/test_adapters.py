"""Slots of adapters on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trivet.contract_suite.tiny_adapters import SLOTS
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet.runners.adapter_memory import adapter_parts
from trivet.runners.adapters import AdapterBank


def test_all_slots_are_two_tensors_of_the_planned_size(tmp_path: Path) -> None:
    """An allocator rounds up each tensor of its own: at 8B by up to 0.4 GiB that nothing plans."""
    spec = open_model(make_tiny_model("llama", tmp_path)).spec
    assert spec is not None
    bank = AdapterBank(spec, SLOTS, torch.float32)
    stacks = [stack for stacks in bank._stacks.values() for stack in stacks]
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in _tensors(stacks)
    }
    assert len(stacks) == 7 * spec.num_layers
    assert len(storages) == 2
    (planned,) = adapter_parts(spec, SLOTS, 4)
    assert sum(storages.values()) == bank.size_bytes == planned.size_bytes
    assert all(each.is_contiguous() for each in _tensors(stacks))


def _tensors(stacks: list[Any]) -> list[torch.Tensor]:
    return [tensor for stack in stacks for tensor in (stack.a, stack.b)]
