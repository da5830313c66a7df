"""Opens a GPU through torch, and says what stands in the way where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trivet.errors import BackendError, DoesNotFit
from trivet_cuda.failures import cure_for, first_error, is_out_of_memory
from trivet_cuda.memory_plan import CONTEXT_BYTES
from trivet_cuda.visibility import VISIBLE

logger = logging.getLogger(__name__)


class Mark(Protocol):
    """A point in the device's queue."""

    def is_passed(self) -> bool:
        """Whether the device has come here."""

    def wait(self) -> None:
        """Until the device has come here."""

    def seconds_since(self, earlier: Mark) -> float:
        """Of two points that the device has passed."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A step that can be run again: it reads the buffers that it was captured with, and fills `output`."""

    output: Tensor
    replay: Callable[[], None]


Capture = Callable[[Callable[[], Tensor]], Captured]


class Device(Protocol):
    """Where tensors live."""

    torch_device: torch.device
    arch: int  # compute capability times ten
    num_sms: int

    def use(self) -> None:
        """Make it the current device of this thread, which kernels and events of libraries go by."""

    def free_bytes(self) -> int:
        """Of the device's memory, now."""

    def reset_peak(self) -> None:
        """Begin to measure `peak_bytes` anew."""

    def peak_bytes(self) -> int:
        """The most that tensors took at once since then, beyond what they took at that time."""

    def mark(self) -> Mark:
        """At the end of the queue."""

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        """Record what `run` queues; all graphs of this device share one pool of memory."""

    def synchronise(self) -> None:
        """Wait for everything that was queued."""

    def release(self) -> None:
        """Give cached memory and the graphs' pool back."""


class CudaDevice:
    """One GPU of this process, by its place among the visible ones."""

    def __init__(self, index: int) -> None:
        """Opens CUDA's context. Raises: BackendError with what to do; DoesNotFit where it has no room."""
        if not torch.cuda.is_available():
            built = torch.version.cuda
            reason = (
                f"torch {torch.__version__} is built without CUDA; install torch for CUDA in this environment"
                if built is None
                else f"torch {torch.__version__} sees no GPU; its CUDA is {built}: check the driver with "
                "nvidia-smi, and CUDA_VISIBLE_DEVICES"
            )
            raise BackendError(f"the GPU cannot be opened: {reason}")
        count = torch.cuda.device_count()
        if index >= count:
            raise BackendError(
                f"torch sees {count} GPUs and this rank needs number {index}; check CUDA_VISIBLE_DEVICES"
            )
        self.torch_device = torch.device("cuda", index)
        try:
            torch.cuda.set_device(index)
            properties = torch.cuda.get_device_properties(index)
            torch.zeros(1, device=self.torch_device)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise DoesNotFit(
                    f"GPU {index} has no room for CUDA itself, which takes some {CONTEXT_BYTES >> 20} MiB; "
                    "end what else runs there, or choose another device"
                ) from error
            raise BackendError(f"GPU {index} cannot be opened: {error}{cure_for(str(error))}") from error
        self.arch = properties.major * 10 + properties.minor
        self.num_sms = int(properties.multi_processor_count)
        # For a report: numbers belong to this card.
        self.label = (
            f"{properties.name}, sm_{self.arch}, {self.num_sms} SMs, {properties.total_memory >> 20} MiB, "
            f"{getattr(properties, 'uuid', 'unknown')}"
        )
        # Of captures: torch's own one is that of whichever device captured first in this process.
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        # Keeps the graphs' pool alive between captures: torch refuses a pool whose last graph has gone.
        self._first_graph: torch.cuda.CUDAGraph | None = None
        self._held_bytes = 0

    def use(self) -> None:
        """As `Device`."""
        torch.cuda.set_device(self.torch_device)

    def free_bytes(self) -> int:
        """As `Device`; torch's allocator gives back what it does not use.

        What it reserves beyond what tensors take is no measure: the pool of graphs is among it for good.
        """
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return int(free)

    def reset_peak(self) -> None:
        """As `Device`."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        self._held_bytes = torch.cuda.memory_allocated(self.torch_device)

    def peak_bytes(self) -> int:
        """As `Device`."""
        return int(torch.cuda.max_memory_allocated(self.torch_device)) - self._held_bytes

    def mark(self) -> Mark:
        """As `Device`."""
        return CudaMark()

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        """As `Device`. Raises: RuntimeError of torch for an operation that cannot be captured.

        Torch ends a capture on the way out, which fails, too, after an operation that failed: its error would
        stand for the operation's, and the stream of captures would stay this thread's.
        """
        graph, first = torch.cuda.CUDAGraph(), self._first_graph
        pool = None if first is None else first.pool()
        stream = torch.cuda.current_stream(self.torch_device)
        try:
            # Other threads may ask the driver for things that a capture forbids, as NCCL's watchdog does.
            with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
                output = run()
        except RuntimeError as error:
            torch.cuda.set_stream(stream)
            raise first_error(error) from None
        self._first_graph = first or graph
        return Captured(output, graph.replay)

    def synchronise(self) -> None:
        """As `Device`."""
        torch.cuda.synchronize(self.torch_device)

    def release(self) -> None:
        """As `Device`."""
        self._first_graph = None
        try:
            torch.cuda.empty_cache()
        except RuntimeError as error:  # a failed device gives nothing back before the process ends
            logger.warning("memory stays with this process until it ends: %s", error)


def open_by_uid(uid: str, environment: Mapping[str, str]) -> CudaDevice:
    """The GPU that was chosen, wherever it stands among those that this process sees.

    A process that was started for it has its whole name in CUDA_VISIBLE_DEVICES; another, as a program that
    uses `trivet.LLM`, may see all of the machine, in CUDA's own order.

    Raises: BackendError.
    """
    named = [name.strip() for name in environment.get(VISIBLE, "").split(",")]
    if uid in named:
        return CudaDevice(named.index(uid))
    first = CudaDevice(0)  # says what stands in the way of any
    seen = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    bare = uid.partition("-")[2]
    if bare not in seen:
        raise BackendError(
            f"torch does not see {uid}, which was chosen; it sees {', '.join(seen)}. Start this process with "
            f"{VISIBLE}={uid}"
        )
    return CudaDevice(seen.index(bare)) if seen.index(bare) else first


class CudaMark:
    """`Mark` by an event of CUDA."""

    def __init__(self) -> None:
        # Blocking: else `wait` keeps a core busy for the whole step.
        self._event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def is_passed(self) -> bool:
        """As `Mark`. Raises: RuntimeError of torch where the device has failed."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """As `Mark`; other threads run meanwhile."""
        self._event.synchronize()

    def seconds_since(self, earlier: Mark) -> float:
        """As `Mark`."""
        assert isinstance(earlier, CudaMark)
        return float(earlier._event.elapsed_time(self._event)) / 1000
