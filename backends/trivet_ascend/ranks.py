"""A model over several NPUs: one process a device, which all run the same steps on their slices.

Rank 0 is the engine process itself. It tells the others each step over a pipe that it made for them, so what
is read there was written by this program; arrays that a rank computes travel by HCCL.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trivet.contract import Batch, Feature, MemoryPart, MemoryPlan, Sampling, StepOutput
from trivet.errors import BackendError, DeviceLost, OutOfMemory, TrivetError
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_ascend.explanations import cure_for
from trivet_ascend.memory_plan import Shape
from trivet_ascend.npu_device import Device, NpuDevice
from trivet_ascend.runner import AscendRunner
from trivet_ascend.slices import Rank

if TYPE_CHECKING:
    from trivet.contract import Int32

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0
# Loading a large model from a slow disk takes minutes; a rank that has died is noticed at once.
ANSWER_TIMEOUT_S = 3600.0
POLL_S = 0.5
MEETING_TIMEOUT = timedelta(minutes=5)


class OpensDevice(Protocol):
    """Makes the device of a rank in its process, and names the collectives' backend; pickled by name."""

    def __call__(self, index: int) -> tuple[Device, str]: ...


def open_npu(index: int) -> tuple[Device, str]:
    """An NPU and HCCL."""
    return NpuDevice(index), "hccl"


class Distributed:
    """`collectives.Collectives` over torch's process group."""

    def sum(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    def concatenate(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a rank's process is started with."""

    spec: ModelSpec
    plan: MemoryPlan
    shape: Shape
    index: int
    meeting: str  # file where the ranks find each other
    opens: OpensDevice

    def meet(self, device: Device, collectives: str) -> AscendRunner:
        """Wait for the other ranks, whose devices are open. Raises: BackendError."""
        try:
            dist.init_process_group(
                collectives,
                init_method=f"file://{self.meeting}",
                rank=self.index,
                world_size=self.shape.num_ranks,
                timeout=MEETING_TIMEOUT,
            )
        except RuntimeError as error:
            raise BackendError(
                f"rank {self.index} of {self.shape.num_ranks} did not meet the others: {error}"
                f"{cure_for(str(error))}"
            ) from error
        rank = Rank(self.index, self.shape.num_ranks)
        return AscendRunner(self.spec, self.plan, self.shape, device, rank, Distributed())


def run_rank(task: RankTask, pipe: Connection) -> None:
    """The body of a rank's process: does what rank 0 says until it says no more."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    runner: AscendRunner | None = None
    try:
        opened = task.opens(task.index)
        pipe.send(None)
        runner = task.meet(*opened)
        pipe.send(None)
        while True:
            name, arguments = pipe.recv()
            if name == "close":
                return
            _carry_out(runner, name, arguments)
            if name not in ("forward", "sample"):  # steps are not answered: the next may be under way
                pipe.send(None)
    except EOFError:
        return
    except (TrivetError, RuntimeError, OSError) as error:
        pipe.send(f"rank {task.index}: {type(error).__name__}: {error}")
    finally:
        if runner is not None:
            runner.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _end_with(parent: int) -> None:
    """End when rank 0 has ended: this process may stand inside a collective, where it reads no pipe."""
    while os.getppid() == parent:
        threading.Event().wait(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _carry_out(runner: AscendRunner, name: str, arguments: tuple[Any, ...]) -> None:
    if name == "load":
        runner.load(arguments[0], lambda done, total: None)
    elif name == "sample":
        runner.take_part_in_sampling(arguments[0])
    else:
        getattr(runner, name)(*arguments)


class TensorParallelRunner:
    """`contract.Runner` over all ranks; sampling is rank 0's.

    A step that fails on one rank leaves the others waiting inside it, so running out of memory is final here:
    the plan is the same on every rank, and its margin is what prevents it.
    """

    features: frozenset[Feature] = AscendRunner.features
    max_in_flight = 1

    def __init__(
        self, spec: ModelSpec, plan: MemoryPlan, shape: Shape, opens: OpensDevice = open_npu
    ) -> None:
        """Starts the ranks. Raises: BackendError of any of them."""
        self._folder = tempfile.TemporaryDirectory(prefix="trivet-ranks-")
        meeting = str(Path(self._folder.name, "meeting"))
        tasks = [RankTask(spec, plan, shape, index, meeting, opens) for index in range(shape.num_ranks)]
        context = multiprocessing.get_context("spawn")  # a forked NPU process cannot use its device
        self._pipes: list[Connection] = []
        self._processes = []
        for task in tasks[1:]:
            ours, theirs = context.Pipe()
            process = context.Process(target=run_rank, args=(task, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        try:
            opened = opens(0)
            self._await_answers()
            self._inner = tasks[0].meet(*opened)
            self._await_answers()
        except BaseException:
            self._end_ranks()
            raise

    # ---- start -----------------------------------------------------------------------------------

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract; every rank reads its slices."""
        self._tell("load", weights)
        self._inner.load(weights, on_progress)
        self._await_answers()

    def allocate_kv(self) -> None:
        """As the contract."""
        self._tell("allocate_kv")
        self._inner.allocate_kv()
        self._await_answers()

    def warm_up(self) -> None:
        """As the contract."""
        self._tell("warm_up")
        self._inner.warm_up()
        self._await_answers()

    # ---- steps -----------------------------------------------------------------------------------

    def host_buffer(self, num_int32: int) -> Int32:
        """As the contract."""
        return self._inner.host_buffer(num_int32)

    def forward(self, batch: Batch) -> None:
        """As the contract; the other ranks get token ids that are all known."""
        resolved = self._inner.resolved(batch)
        self._tell("forward", resolved)
        self._inner.forward(resolved)

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract."""
        self._tell("sample", step)
        self._inner.sample(step, sampling)

    def collect(self, step: int) -> StepOutput:
        """As the contract. Raises: DeviceLost where a rank is gone or ran out of memory."""
        try:
            output = self._inner.collect(step)
        except OutOfMemory as error:
            raise DeviceLost(f"rank 0 left a step of {len(self._pipes) + 1} ranks: {error}") from error
        self._check_ranks()
        return output

    # ---- the rest --------------------------------------------------------------------------------

    def memory(self) -> tuple[MemoryPart, ...]:
        """Of rank 0, whose slices are the largest."""
        return self._inner.memory()

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """Raises: Unsupported."""
        self._inner.load_adapter(slot, weights)

    def unload_adapter(self, slot: int) -> None:
        """Raises: Unsupported."""
        self._inner.unload_adapter(slot)

    def close(self) -> None:
        """As the contract."""
        self._inner.close()
        self._end_ranks()

    def _tell(self, name: str, *arguments: object) -> None:
        self._check_ranks()
        for pipe in self._pipes:
            try:
                pipe.send((name, arguments))
            except OSError as error:
                raise DeviceLost(
                    f"a rank has ended: {error}; its log lines stand in this engine's log"
                ) from error

    def _check_ranks(self) -> None:
        """Raises: DeviceLost with the words of a rank that has failed."""
        for pipe in self._pipes:
            if pipe.poll():
                self._take_answer(pipe)

    def _await_answers(self) -> None:
        """Each rank's answer to the last command. Raises: DeviceLost."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            waited_s = 0.0
            while not pipe.poll(POLL_S):
                waited_s += POLL_S
                if not process.is_alive() and not pipe.poll():
                    raise DeviceLost(f"a rank ended with code {process.exitcode} without a word")
                if waited_s > ANSWER_TIMEOUT_S:
                    raise DeviceLost(f"a rank gave no answer within {ANSWER_TIMEOUT_S:.0f} s")
            self._take_answer(pipe)

    def _take_answer(self, pipe: Connection) -> None:
        try:
            failure = pipe.recv()
        except EOFError:
            failure = "a rank has ended without a word"
        if failure is not None:
            raise DeviceLost(failure)

    def _end_ranks(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(("close", ()))
            except OSError:
                continue
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in self._processes:
            process.join(CLOSE_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []
        self._folder.cleanup()
