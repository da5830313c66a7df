"""The matrices that adapters (LoRA) may adapt, and what their slots take; no torch.

A slot has room for the largest rank in each matrix, so an adapter can be loaded into any without a new plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trivet.contract import AdapterSlots, MemoryPart
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.runners.model_matrices import packed_matrices
from trivet.runners.slices import local_spec

if TYPE_CHECKING:
    from trivet.weights.index import WeightIndex

PART_NAME = "adapters"
_Bank = TypeVar("_Bank")


@dataclass(frozen=True, slots=True)
class AdaptedPart:
    """One matrix of a packed one, on one rank."""

    stem: str  # canonical: "layers.3.q"
    matrix: str  # as in `ops.Ops.pack`: "layers.3.qkv"
    first_row: int  # of the packed matrix
    num_rows: int
    num_columns: int
    shard: str  # "column": this rank has a part of the rows; "row": of the columns


def adapted_parts(spec: ModelSpec, slots: AdapterSlots, num_ranks: int = 1) -> Iterator[AdaptedPart]:
    """Of the parts that `slots` names, in the order of the packed matrices; sizes are one rank's."""
    local = local_spec(spec, num_ranks)
    rows_of = {}
    for index in range(local.num_layers):
        attention = local.layer(index).attention
        rows_of[f"layers.{index}.q"] = attention.num_heads * attention.head_dim
        rows_of[f"layers.{index}.k"] = attention.num_kv_heads * attention.head_dim
        rows_of[f"layers.{index}.v"] = attention.num_kv_heads * attention.head_dim
    for matrix in packed_matrices(local):
        first = 0
        for stem in matrix.parts:
            rows = rows_of.get(stem, matrix.num_rows // len(matrix.parts))
            if stem.startswith("layers.") and stem.rpartition(".")[2] in slots.parts:
                yield AdaptedPart(stem, matrix.name, first, rows, matrix.num_columns, matrix.shard)
            first += rows


def adapter_parts(
    spec: ModelSpec, slots: AdapterSlots, value_bytes: int, num_ranks: int = 1
) -> tuple[MemoryPart, ...]:
    """All slots on one rank; nothing where there are none."""
    if not slots.num_slots:
        return ()
    values = sum(part.num_rows + part.num_columns for part in adapted_parts(spec, slots, num_ranks))
    return (MemoryPart(PART_NAME, slots.num_slots * slots.max_rank * values * value_bytes),)


def adapter_step_bytes(slots: AdapterSlots, value_bytes: int, num_tokens: int) -> int:
    """What a step of so many tokens takes for them besides: A x of every slot, and who has which."""
    return num_tokens * slots.num_slots * (slots.max_rank * value_bytes + 1)


def check_adapter(slots: AdapterSlots, slot: int, weights: WeightIndex) -> None:
    """Raises: Unsupported where there is no such slot, or where the adapter does not fit one."""
    if not 1 <= slot <= slots.num_slots:
        raise Unsupported(
            f"there is no slot {slot} for an adapter: there are {slots.num_slots}; raise max_loras"
        )
    for tensor in weights.tensors:
        _, _, rest = tensor.name.partition(".")
        part = rest.split(".")[1]
        rank = tensor.shape[0 if tensor.name.endswith(".lora_a") else 1]
        if part not in slots.parts:
            raise Unsupported(
                f"the adapter adapts {part}, and the slots have room for {', '.join(slots.parts)}; "
                "start the engine with this adapter, or with max_loras above the number of its adapters"
            )
        if rank > slots.max_rank:
            raise Unsupported(
                f"the adapter's rank is {rank} and the slots have room for {slots.max_rank}; "
                f"raise max_lora_rank to {rank}"
            )


def bank_of(bank: _Bank | None) -> _Bank:
    """Raises: Unsupported where the plan has no slots."""
    if bank is None:
        raise Unsupported("this engine was planned without slots for adapters; set adapters or max_loras")
    return bank
