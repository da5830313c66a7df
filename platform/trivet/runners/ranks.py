"""A model over several devices: one process a device, which all run the same steps on their slices.

Rank 0 is the engine process itself. It tells the others each step over a socket that it made for them, in
MessagePack; arrays that a rank computes travel by the collectives.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from trivet.contract import (
    Batch,
    DeviceInfo,
    Feature,
    MemoryPart,
    MemoryPlan,
    RunnerConfig,
    Sampling,
    StepOutput,
)
from trivet.errors import DeviceLost, OutOfMemory, TrivetError, WeightsError
from trivet.models.spec import ModelSpec
from trivet.runners.collectives import Distributed
from trivet.runners.other_rank import RankProcess, answering
from trivet.runners.rank_order import (
    OpenedRank,
    OpensRank,
    RankOrder,
    meet,
)
from trivet.runners.slices import Rank
from trivet.runners.wire import flatten
from trivet.weights.index import WeightIndex

if TYPE_CHECKING:
    from trivet.contract import Int32

logger = logging.getLogger(__name__)
# Loading a large model from a slow disk takes minutes; a rank that has died is noticed at once.
ANSWER_TIMEOUT_S = 3600.0
POLL_S = 0.5
STEP_POLL_S = 5e-5  # a step of several devices takes milliseconds


def told_by(ranks: Sequence[int], count: int, notice: str) -> str:
    """The notice of some of `count` ranks."""
    if len(ranks) == count:
        return notice
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {notice}"


class TensorParallelRunner:
    """`contract.Runner` over all ranks; sampling is rank 0's.

    A step that fails on one rank leaves the others waiting inside it, so running out of memory is final here:
    the plan is the same on every rank, and its margin is what prevents it.
    """

    max_in_flight = 1

    def __init__(
        self,
        spec: ModelSpec,
        config: RunnerConfig,
        plan: MemoryPlan,
        devices: Sequence[DeviceInfo],
        opens: OpensRank,
    ) -> None:
        """Starts the ranks. `opens` is a function of a module, which they import by its name.

        Raises: BackendError of any of them.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="trivet-ranks-")
        count, meeting = config.tensor_parallel, str(Path(self._folder.name, "meeting"))
        name = f"{opens.__module__}:{opens.__qualname__}"  # type: ignore[attr-defined]  # of any function
        orders = [
            RankOrder(name, Rank(index, count), meeting, spec, config, plan, tuple(devices))
            for index in range(count)
        ]
        self._ranks: list[RankProcess] = []
        self._is_lost = False
        self._is_meeting = False
        try:
            for order in orders[1:]:
                self._ranks.append(RankProcess(order))
            opened = opens(orders[0])
            self._await_answers()
            self._meet(orders[0], opened)
            self._inner = opened.make_runner(Distributed())
            self._await_answers()
        except BaseException:
            self._is_lost = True  # the others wait for this rank
            self._end_ranks()
            raise
        self.features: frozenset[Feature] = self._inner.features

    # ---- start -----------------------------------------------------------------------------------

    def _meet(self, order: RankOrder, opened: OpenedRank) -> None:
        """As `meet`, for as long as all ranks live. Raises: BackendError.

        Nothing ends a process group that is being formed but its timeout, so this rank's part has a thread,
        which is left behind where another rank ends.
        """
        met: Future[None] = Future()

        def run() -> None:
            try:
                meet(order, opened)
                met.set_result(None)
            except BaseException as error:  # raised where the result is asked for
                met.set_exception(error)

        self._is_meeting = True
        threading.Thread(target=run, name="meeting", daemon=True).start()
        while not wait([met], POLL_S).done:
            self._raise_failure()
        self._is_meeting = False
        if met.exception() is not None:
            self._raise_failure(POLL_S)  # the words of the rank that failed first
        met.result()

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """As the contract; every rank reads its slices."""
        self._tell("load", weights)
        with self._watching_ranks():
            self._inner.load(weights, on_progress)
        self._await_answers()

    def allocate_kv(self) -> None:
        """As the contract."""
        self._tell("allocate_kv")
        with self._watching_ranks():
            self._inner.allocate_kv()
        self._await_answers()

    def warm_up(self) -> None:
        """As the contract."""
        self._tell("warm_up")
        with self._watching_ranks():
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
        with self._in_a_step():
            self._inner.forward(resolved)

    def sample(self, step: int, sampling: Sampling) -> None:
        """As the contract."""
        self._tell("take_part_in_sampling", step)
        with self._in_a_step():
            self._inner.sample(step, sampling)

    def collect(self, step: int) -> StepOutput:
        """As the contract. Raises: DeviceLost where a rank is gone or ran out of memory.

        Without it the others' part of a product never comes and this device would wait for ever, so the ranks
        are looked at all the while.
        """
        while not self._inner.is_ready(step):
            self.check_ranks()
            time.sleep(STEP_POLL_S)
        with self._in_a_step():
            output = self._inner.collect(step)
        self.check_ranks()
        return output

    # ---- the rest --------------------------------------------------------------------------------

    def memory(self) -> tuple[MemoryPart, ...]:
        """Of rank 0, whose slices are the largest."""
        return self._inner.memory()

    def peaks(self) -> dict[str, int]:
        """As `optional_contract.MeasuresPeaks`: rank 0's, which has asked the others."""
        return self._inner.peaks()

    def notices(self) -> tuple[str, ...]:
        """Of all ranks; one that not all have names those that have it."""
        told = ((0, self._inner.notices()), *((rank.index, rank.notices) for rank in self._ranks))
        ranks_of: dict[str, list[int]] = {}
        for index, notices in told:
            for notice in notices:
                ranks_of.setdefault(notice, []).append(index)
        return tuple(told_by(ranks, len(told), notice) for notice, ranks in ranks_of.items())

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """As the contract; every rank reads its slices.

        Rank 0 first: what it refuses any other would refuse, and a rank that fails ends.
        """
        try:
            self._inner.load_adapter(slot, weights)
        except WeightsError:  # its slot is empty now
            self.unload_adapter(slot)
            raise
        self._tell("load_adapter", slot, weights)
        self._await_answers()

    def unload_adapter(self, slot: int) -> None:
        """As the contract."""
        self._tell("unload_adapter", slot)
        self._inner.unload_adapter(slot)
        self._await_answers()

    def close(self) -> None:
        """As the contract. Where a rank was lost, this device may wait for it for ever and is left alone."""
        if not self._is_lost:
            self._inner.close()
        self._end_ranks()

    def _tell(self, name: str, *arguments: object) -> None:
        self.check_ranks()
        message = flatten((name, *arguments))
        with self._noticing_loss():
            for rank in self._ranks:
                rank.tell(message)

    def check_ranks(self) -> None:
        """As `optional_contract.HasRanks`."""
        with self._noticing_loss():
            for rank in self._by_cause():
                rank.check()

    def _await_answers(self) -> None:
        """Of all ranks, whichever comes first: the first failure ends it."""
        waiting, deadline_s = list(self._ranks), time.monotonic() + ANSWER_TIMEOUT_S
        with self._noticing_loss():
            while waiting:
                has_answered = answering(waiting, POLL_S)
                self._raise_failure()
                for rank in has_answered:
                    rank.take_answer()
                    waiting.remove(rank)
                if waiting and time.monotonic() > deadline_s:
                    names = ", ".join(str(rank.index) for rank in waiting)
                    raise DeviceLost(f"rank {names} gave no answer within {ANSWER_TIMEOUT_S:.0f} s")

    def _by_cause(self) -> list[RankProcess]:
        """Those first that have gone without a word: the words of others may be that they miss them."""
        return sorted(self._ranks, key=lambda rank: not rank.has_gone())

    def _raise_failure(self, timeout_s: float = 0.0) -> None:
        """Of a rank that has failed, or does so within the time. Raises: what it has said, or DeviceLost."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for rank in self._by_cause():
                if rank.has_failed():
                    rank.check()
            if time.monotonic() >= deadline_s:
                return
            time.sleep(STEP_POLL_S)

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except TrivetError:
            self._is_lost = True
            raise

    @contextmanager
    def _in_a_step(self) -> Iterator[None]:
        """What rank 0 raises in a step leaves the others inside it: none of them can be asked to close.

        Raises: what another rank has said, which may be why; DeviceLost for lack of memory.
        """
        try:
            yield
        except BaseException as error:
            self._is_lost = True
            self._raise_failure(POLL_S)
            if isinstance(error, OutOfMemory):
                raise DeviceLost(f"rank 0 left a step of {len(self._ranks) + 1} ranks: {error}") from error
            raise

    @contextmanager
    def _watching_ranks(self) -> Iterator[None]:
        """This rank's part of a start may wait in a collective for one that has failed: then it is ended.

        Raises: what that rank has said, or DeviceLost.
        """
        has_ended = threading.Event()

        def watch() -> None:
            while not has_ended.wait(POLL_S):
                if any(rank.has_failed() for rank in self._ranks):
                    self._is_lost = True
                    self._abort_collectives()
                    return

        watching = threading.Thread(target=watch, name="ranks", daemon=True)
        watching.start()
        try:
            yield
        except (RuntimeError, TrivetError):
            with self._noticing_loss():
                self._raise_failure(POLL_S)  # the words of the rank that failed first
            raise
        finally:
            has_ended.set()
            watching.join()

    def _abort_collectives(self) -> None:
        if dist.is_initialized() and (group := dist.group.WORLD) is not None:
            with suppress(RuntimeError, AttributeError):  # NCCL has it: what waits for the lost rank ends
                group.abort()

    def _end_ranks(self) -> None:
        for rank in self._ranks:
            rank.say_close()
        if self._is_lost:
            for rank in self._ranks:
                rank.disconnect()
            self._abort_collectives()
        if dist.is_initialized() and not self._is_meeting:
            dist.destroy_process_group()
        for rank in self._ranks:
            rank.end()
        self._ranks = []
        self._folder.cleanup()
