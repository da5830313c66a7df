"""Adapters (LoRA, Hu et al. 2021) beside packed weights: y += B (A x), each token with its own adapter.

All slots of a matrix stand in one tensor. Tokens of many adapters are one product with the matrices A of all
slots of theirs, in which what belongs to another adapter is put to zero, and one with their matrices B: two
products and a mask, however many adapters there are, and nothing that depends on the host, so that a decode
can be captured. The chunk of a prompt has one adapter, and is multiplied by that one alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.contract import AdapterSlots
from trivet.errors import WeightsError
from trivet.models.spec import ModelSpec
from trivet.runners.adapter_memory import AdaptedPart, adapted_parts, check_adapter
from trivet.runners.slices import Rank
from trivet.weights.reader import TensorReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.contract import Batch
    from trivet.weights.index import WeightIndex

LONG = 32  # tokens of a sequence from which on it is multiplied alone


@dataclass(frozen=True, slots=True)
class _Stack:
    """One matrix's adapters in all slots."""

    part: AdaptedPart
    a: Tensor  # [num_slots, max_rank, in]
    b: Tensor  # [num_slots, max_rank, out], with the scale


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens `start` to `stop`, whose adapters stand in the slots `low` + 1 to `high`."""

    start: int
    stop: int
    low: int
    high: int
    others: (
        Tensor | None
    )  # [stop - start, high - low, 1]: true where a slot is not the token's; None: all are


@dataclass(frozen=True, slots=True)
class _Delta:
    """As `ops.Delta`."""

    stacks: tuple[_Stack, ...]
    segments: tuple[Segment, ...]

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """As `ops.Delta.add_to`."""
        for segment in self.segments:
            rows, out = x[segment.start : segment.stop], y[segment.start : segment.stop]
            for stack in self.stacks:
                a, b = (each[segment.low : segment.high].flatten(0, 1) for each in (stack.a, stack.b))
                inner = F.linear(rows, a)
                if segment.others is not None:  # selected, not multiplied by zero: another's may be infinite
                    shaped = inner.view(len(rows), segment.high - segment.low, -1)
                    shaped.masked_fill_(segment.others, 0.0)
                part = stack.part
                out[:, part.first_row : part.first_row + part.num_rows].addmm_(inner, b)


@dataclass(slots=True)
class StepAdapters:
    """As `ops.StepAdapters`."""

    stacks: dict[str, tuple[_Stack, ...]]
    segments: tuple[Segment, ...]

    def delta(self, name: str) -> _Delta | None:
        """As `ops.StepAdapters.delta`."""
        stacks = self.stacks.get(name)
        return _Delta(stacks, self.segments) if stacks else None


class AdapterBank:
    """All slots of one model on one device, or one rank of it."""

    def __init__(
        self,
        spec: ModelSpec,
        slots: AdapterSlots,
        dtype: torch.dtype,
        device: torch.device | None = None,
        rank: Rank = Rank(),  # noqa: B008  # frozen
    ) -> None:
        """`spec` is the whole model's. Raises: torch.OutOfMemoryError."""
        self._slots, self._rank, self._device = slots, rank, device
        self._stacks: dict[str, tuple[_Stack, ...]] = {}
        parts = tuple(adapted_parts(spec, slots, rank.count))
        size = slots.num_slots, slots.max_rank
        all_a = _views(size, [part.num_columns for part in parts], dtype, device)
        all_b = _views(size, [part.num_rows for part in parts], dtype, device)
        for part, a, b in zip(parts, all_a, all_b, strict=True):
            self._stacks[part.matrix] = (*self._stacks.get(part.matrix, ()), _Stack(part, a, b))
        self._ids = torch.arange(1, slots.num_slots + 1, dtype=torch.int32, device=device)

    @property
    def size_bytes(self) -> int:
        return sum(s.a.nbytes + s.b.nbytes for stacks in self._stacks.values() for s in stacks)

    # ---- what is in a slot -----------------------------------------------------------------------

    def load(self, slot: int, weights: WeightIndex) -> None:
        """As `contract.Runner.load_adapter`."""
        check_adapter(self._slots, slot, weights)
        self.unload(slot)
        try:
            with TensorReader(weights) as reader, torch.inference_mode():
                for stacks in self._stacks.values():
                    for stack in stacks:
                        if f"{stack.part.stem}.lora_a" in weights:
                            self._put(slot, stack, reader)
        except WeightsError:
            self.unload(slot)
            raise

    def unload(self, slot: int) -> None:
        """Zeros add nothing."""
        with torch.inference_mode():
            for stacks in self._stacks.values():
                for stack in stacks:
                    stack.a[slot - 1].zero_()
                    stack.b[slot - 1].zero_()

    def _put(self, slot: int, stack: _Stack, reader: TensorReader) -> None:
        part, rank = stack.part, self._rank
        a, b = (_finite(reader, f"{part.stem}.{name}", stack.a.dtype) for name in ("lora_a", "lora_b"))
        if part.shard == "row":
            span = rank.part(a.shape[1])
            a = a[:, span.start : span.stop]
        else:
            span = rank.part(b.shape[0])
            b = b[span.start : span.stop]
        stack.a[slot - 1, : len(a)].copy_(a)
        stack.b[slot - 1, : len(a)].copy_(b.T)

    # ---- steps -----------------------------------------------------------------------------------

    def step(self, batch: Batch, token_slots: Tensor | None = None) -> StepAdapters | None:
        """Of a batch; None where every row is the base model's.

        Args:
            token_slots: int32 [T] on the device, the slot of each token's adapter; None copies it there.
        """
        slots = batch.adapters
        if slots is None or not slots.any():
            return None
        query_lens = np.diff(batch.query_start_loc)
        if token_slots is None:
            token_slots = torch.from_numpy(np.repeat(slots, query_lens)).to(self._device)
        num_short = int(np.searchsorted(query_lens, LONG))  # sorted by query length
        starts = batch.query_start_loc
        segments = [self._segment(slots[:num_short], 0, int(starts[num_short]), token_slots)]
        for index in range(num_short, len(slots)):
            span = int(starts[index]), int(starts[index + 1])
            segments.append(self._segment(slots[index : index + 1], *span, token_slots))
        return StepAdapters(self._stacks, tuple(each for each in segments if each is not None))

    def fullest(self, batch: Batch) -> Batch:
        """Of a warm-up: with every slot in use, so that what it takes is measured."""
        slots = 1 + np.arange(len(batch.slots), dtype=np.int32) % np.int32(self._slots.num_slots)
        return replace(batch, adapters=slots)

    def captured_step(self, token_slots: Tensor) -> StepAdapters:
        """Of decodes whose adapters are on the device alone, and change there before each replay."""
        others = (token_slots[:, None] != self._ids)[:, :, None]
        segment = Segment(0, len(token_slots), 0, self._slots.num_slots, others)
        return StepAdapters(self._stacks, (segment,))

    def _segment(
        self, slots: NDArray[np.int32], start: int, stop: int, token_slots: Tensor
    ) -> Segment | None:
        used = slots[slots > 0]
        if not len(used):
            return None
        low, high = int(used.min()) - 1, int(used.max())
        if high - low == 1 and len(used) == len(slots):
            return Segment(start, stop, low, high, None)
        others = (token_slots[start:stop, None] != self._ids[low:high])[:, :, None]
        return Segment(start, stop, low, high, others)


def _views(
    size: tuple[int, int], widths: list[int], dtype: torch.dtype, device: torch.device | None
) -> list[Tensor]:
    """Zeros [*size, width] of each width, in one tensor: an allocator would round up each of its own."""
    lengths = [size[0] * size[1] * width for width in widths]
    whole = torch.zeros(sum(lengths), dtype=dtype, device=device)
    return [part.view(*size, width) for part, width in zip(torch.split(whole, lengths), widths, strict=True)]


def _finite(reader: TensorReader, name: str, dtype: torch.dtype) -> Tensor:
    """A copy. Raises: WeightsError: zeros of other rows times what is not finite would not be zero."""
    values = torch.from_numpy(np.array(reader.float32(name))).to(dtype)
    if not values.isfinite().all():
        file = reader.index[name].file
        raise WeightsError(f"{file}: tensor {name!r} holds values that are not finite in {dtype}")
    return values
