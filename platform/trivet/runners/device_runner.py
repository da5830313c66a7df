"""What runners of one model on one GPU or NPU, or of one rank of it, share: all but the steps themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from trivet.contract import Batch, BlockCopy, Feature, MemoryPart, MemoryPlan
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.decoder import Decoder
from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES, TorchOps
from trivet.runners.adapter_memory import PART_NAME, bank_of
from trivet.runners.adapters import AdapterBank
from trivet.runners.collectives import Alone, Collectives
from trivet.runners.sharded_weights import Packer
from trivet.runners.slices import Rank, local_spec
from trivet.runners.step_shape import StepShape
from trivet.runners.stored_matrix import MappedSource
from trivet.weights.index import WeightIndex
from trivet.weights.reader import TensorReader

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32

GIB = 1 << 30
STEP_PARTS = ("activations", "logits")  # of the plan, one after the other in a step


class PagedCache(Protocol):
    """KV of all layers on the device."""

    block_size: int

    @property
    def size_bytes(self) -> int: ...

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Within the cache; all sources are read first."""


class HasMemory(Protocol):
    """A device."""

    @property
    def torch_device(self) -> torch.device: ...

    def free_bytes(self) -> int:
        """Of its memory, now."""

    def release(self) -> None:
        """Give back what is cached."""


Shape = TypeVar("Shape", bound=StepShape)
Device = TypeVar("Device", bound=HasMemory)
Cache = TypeVar("Cache", bound=PagedCache)


class DeviceRunner(ABC, Generic[Shape, Device, Cache]):
    """A part of `contract.Runner`."""

    features: frozenset[Feature] = frozenset({Feature.POOLING, Feature.LORA})
    device_noun: str  # in messages: "GPU"

    def __init__(
        self,
        spec: ModelSpec,
        plan: MemoryPlan,
        shape: Shape,
        device: Device,
        rank: Rank,
        collectives: Collectives | None,
    ) -> None:
        self._spec, self._plan, self._shape, self._device = spec, plan, shape, device
        self._local = local_spec(spec, rank.count)
        self._rank, self._collectives = rank, collectives or Alone()
        self._decoder: Decoder | None = None
        self._kv: Cache | None = None
        self._adapters: AdapterBank | None = None
        self._measured: dict[str, int] = {}  # bytes, by the plan's names
        self._notices: list[str] = []  # as `optional_contract.GivesNotices`

    # ---- what a backend has of its own -----------------------------------------------------------

    @abstractmethod
    def _prepared_ops(self, weights: WeightIndex) -> tuple[TorchOps, Packer]:
        """The operations that will run, tested as the options want it, and what packs their weights."""

    @abstractmethod
    def _new_cache(self) -> Cache:
        """As planned. Raises: torch.OutOfMemoryError."""

    @abstractmethod
    def _logits_rows(self) -> int:
        """Of one piece."""

    # ---- start -----------------------------------------------------------------------------------

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract; of a matrix only this rank's slice is read."""
        try:
            ops, packer = self._prepared_ops(weights)
            decoder = Decoder(self._local, ops)
            with TensorReader(weights) as reader, torch.inference_mode():
                decoder.load(MappedSource(reader, on_progress))
        except torch.OutOfMemoryError as error:
            raise self._does_not_fit("the weights", "weights") from error
        packer.finish()
        self._make_room_for_adapters()
        self._measured["weights"] = packer.size_bytes
        on_progress(weights.size_bytes, weights.size_bytes)
        self._decoder = decoder

    def _warm_up_step(self, batch: Batch) -> Batch:
        """With adapters where there are slots."""
        return batch if self._adapters is None else self._adapters.fullest(batch)

    def _make_room_for_adapters(self) -> None:
        """As planned."""
        slots, shape, device = self._shape.adapters, self._shape, self._device.torch_device
        if not slots.num_slots:
            return
        try:
            self._adapters = AdapterBank(self._spec, slots, DTYPES[shape.dtype], device, self._rank)
        except torch.OutOfMemoryError as error:
            raise self._does_not_fit("the adapters' slots", PART_NAME) from error
        self._measured[PART_NAME] = self._adapters.size_bytes

    def allocate_kv(self) -> None:
        """As the contract."""
        needed, free = self._planned("kv"), self._device.free_bytes()
        if needed > free:
            raise self._kv_does_not_fit(free)
        try:
            self._kv = self._new_cache()
        except torch.OutOfMemoryError as error:
            raise self._kv_does_not_fit(self._device.free_bytes()) from error
        self._measured["kv"] = self._kv.size_bytes

    def _planned(self, name: str) -> int:
        return sum(part.size_bytes for part in self._plan.parts if part.name == name)

    def _kv_does_not_fit(self, free: int) -> DoesNotFit:
        return DoesNotFit(
            f"the KV cache takes {self._planned('kv') / GIB:.2f} GiB and {free / GIB:.2f} GiB of the "
            f"{self.device_noun} is free now; lower max_model_len or gpu_memory_utilization, or end what "
            "else runs on this device"
        )

    def _does_not_fit(self, what: str, part: str) -> DoesNotFit:
        planned, free = self._planned(part) / GIB, self._device.free_bytes() / GIB
        return DoesNotFit(
            f"{what} should take {planned:.2f} GiB of the {self.device_noun}, and {free:.2f} GiB is free "
            "now; lower gpu_memory_utilization or max_num_batched_tokens, or end what else runs there"
        )

    # ---- steps -----------------------------------------------------------------------------------

    def host_buffer(self, num_int32: int) -> Int32:
        """As the contract; ordinary memory: the runner packs a step's arrays itself."""
        return np.empty(num_int32, np.int32)

    def _no_hidden(self) -> Tensor:
        """Hidden states of a step without tokens."""
        device, dtype = self._device.torch_device, DTYPES[self._shape.dtype]
        return torch.empty((0, self._spec.hidden_size), dtype=dtype, device=device)

    def _pieces_of_logits(self, hidden: Tensor) -> Iterator[Tensor]:
        """[<= max_logits_rows, num_tokens] in float32; padding rows of the head are never sampled."""
        assert self._decoder is not None, "load comes before sample"
        rows = self._logits_rows()
        for first in range(0, len(hidden), rows):
            with torch.inference_mode():
                logits = self._decoder.logits(hidden[first : first + rows])
                piece: Tensor = logits[:, : self._spec.num_tokens].float()
            yield piece

    def _copy_blocks(self, batch: Batch) -> None:
        assert self._kv is not None, "allocate_kv comes before forward"
        for copy in batch.copies:
            if copy.from_host or copy.to_host:
                raise Unsupported("this runner has no host KV blocks; it declares no host_kv feature")
            self._kv.copy_blocks(copy)

    def is_ready(self, step: int) -> bool:
        """Whether `collect` would not wait; asked where several ranks compute. True: it was waited before."""
        return True

    # ---- the rest --------------------------------------------------------------------------------

    def memory(self) -> tuple[MemoryPart, ...]:
        """As the contract."""
        parts = self._plan.parts
        return tuple(MemoryPart(p.name, self._measured.get(p.name, p.size_bytes)) for p in parts)

    def peaks(self) -> dict[str, int]:
        """As `optional_contract.MeasuresPeaks`; nothing of a device that does not tell."""
        return {part: self._measured[part] for part in STEP_PARTS if self._measured.get(part)}

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """As the contract; of a matrix only this rank's slice is kept."""
        bank_of(self._adapters).load(slot, weights)

    def unload_adapter(self, slot: int) -> None:
        """As the contract."""
        bank_of(self._adapters).unload(slot)


def sums_of(hidden: Tensor) -> Callable[[int, int], Float32]:
    """For `pooling.pool`: sums of rows of hidden states [T, hidden_size]."""

    def sum_of(first: int, stop: int) -> Float32:
        total: Float32 = hidden[first:stop].sum(dim=0, dtype=torch.float32).cpu().numpy()
        return total

    return sum_of
