"""Two and four ranks over gloo give what one gives; a rank that ends is noticed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trivet_ascend_emulated.backend import TOTAL_BYTES
from trivet_ascend_emulated.device import EmulatedDevice
from trivet_ascend_emulated.openers import (
    open_emulated,
    open_noticing,
    open_too_small_rank_1,
    open_unforeseen,
    open_without_memory,
    refuse_rank_1,
)

from trivet.contract import NO_ADAPTERS, AdapterSlots, MemoryPlan, RunnerConfig, Sampling
from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_adapters import ADAPTERS, SLOTS, make_tiny_adapter
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.engine.agreement import Scores, compare
from trivet.errors import DeviceLost, DoesNotFit, OutOfMemory, Unsupported, WeightsError
from trivet.models.adapter_files import read_adapter
from trivet.models.model_files import ModelFiles, open_model
from trivet.runners.rank_order import MEETING_TIMEOUT, OpensRank
from trivet.runners.ranks import TensorParallelRunner, told_by
from trivet_ascend.backend import runner_shape
from trivet_ascend.op_table import NPU
from trivet_ascend.runner import AscendRunner


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """Four KV heads, a tied head and a vocabulary that three ranks would not divide."""
    return open_model(make_tiny_model("mistral", tmp_path_factory.mktemp("models")))


@pytest.fixture(autouse=True)
def children_find_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "emulated"), prepend=":")


class Launch:
    """Plans and runners of one model over some ranks."""

    def __init__(
        self,
        files: ModelFiles,
        num_ranks: int,
        dtype: str = "f32",
        adapters: AdapterSlots = NO_ADAPTERS,
        **options: str,
    ) -> None:
        from trivet_ascend_emulated.backend import EmulatedAscend

        backend = EmulatedAscend()
        (device,) = backend.probe(1.0)
        assert files.spec is not None
        self.spec, self.weights = files.spec, files.weights
        self.devices = [device]
        self.config = config = RunnerConfig(
            dtype=dtype,
            max_model_len=512,
            max_num_seqs=8,
            num_blocks=20,
            max_num_batched_tokens=128,
            tensor_parallel=num_ranks,
            adapters=adapters,
            options=options,
        )
        self.plan: MemoryPlan = backend.plan(self.spec, self.weights, config, [device])
        self.shape = runner_shape(self.spec, config, self.plan, self.devices)

    def over_ranks(self, opens: OpensRank = open_emulated) -> TensorParallelRunner:
        return TensorParallelRunner(self.spec, self.config, self.plan, self.devices, opens)

    def ready(self, runner: AscendRunner | TensorParallelRunner) -> Driver:
        runner.load(self.weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        return Driver(runner, self.plan, vocab_size=self.spec.num_tokens, max_num_seqs=8)


@pytest.fixture
def parallel(
    request: pytest.FixtureRequest, files: ModelFiles
) -> Iterator[tuple[Launch, TensorParallelRunner]]:
    launch = Launch(files, **request.param)
    runner = launch.over_ranks()
    yield launch, runner
    runner.close()


def tokens_and_scores(driver: Driver, prompt: list[int]) -> tuple[list[int], object]:
    sequence, mate = driver.add(prompt), driver.add(random_prompt(7, 9))
    found = driver.score(sequence, chunk=60)
    driver.generate([sequence, mate], 8)
    return [*sequence.token_ids, *mate.token_ids], found


@pytest.mark.parametrize(
    "parallel",
    [
        {"num_ranks": 2},
        {"num_ranks": 4},
        {"num_ranks": 2, "dtype": "bf16", "attention": "fused", "weights": "w8a16"},
    ],
    ids=["two", "four", "two in bf16 and int8"],
    indirect=True,
)
def test_ranks_together_give_what_one_gives(parallel: tuple[Launch, TensorParallelRunner]) -> None:
    launch, runner = parallel
    prompt = random_prompt(150, 1)
    tokens, scores = tokens_and_scores(launch.ready(runner), prompt)
    alone = AscendRunner(
        launch.spec,
        replace(launch.plan),
        replace(launch.shape, num_ranks=1),
        EmulatedDevice(TOTAL_BYTES),
    )
    try:
        wanted, expected = tokens_and_scores(launch.ready(alone), prompt)
    finally:
        alone.close()
    agreement = compare(expected, scores, launch.shape.dtype)  # type: ignore[arg-type]
    assert agreement.agrees, str(agreement)
    if launch.shape.dtype == "f32":
        assert tokens == wanted


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_adapters_are_cut_as_their_matrices_are(files: ModelFiles, tmp_path: Path, num_ranks: int) -> None:
    """Rows of q and up, columns of o and down; rank 0's bytes are those that were planned."""
    launch = Launch(files, num_ranks, adapters=SLOTS)
    adapters = {
        slot: read_adapter(make_tiny_adapter(launch.spec, slot, tmp_path / str(slot)), launch.spec, str(slot))
        for slot in ADAPTERS
    }

    def scores_with(runner: AscendRunner | TensorParallelRunner) -> list[Scores]:
        driver = launch.ready(runner)
        for slot, adapter in adapters.items():
            runner.load_adapter(slot, adapter.weights)
        found = [driver.score(driver.add(random_prompt(60, 2), slot)) for slot in (0, *ADAPTERS)]
        runner.unload_adapter(1)
        return [*found, driver.score(driver.add(random_prompt(60, 2), 1))]

    runner = launch.over_ranks()
    try:
        together = scores_with(runner)
        sizes = [
            {part.name: part.size_bytes for part in parts}["adapters"]
            for parts in (launch.plan.parts, runner.memory())
        ]
        assert sizes[0] == sizes[1]
    finally:
        runner.close()
    shape = replace(launch.shape, num_ranks=1)
    alone = AscendRunner(launch.spec, launch.plan, shape, EmulatedDevice(TOTAL_BYTES))
    try:
        wanted = scores_with(alone)
    finally:
        alone.close()
    for one, other in zip(together, wanted, strict=True):
        agreement = compare(other, one, "f32")
        assert agreement.agrees, str(agreement)
    assert not compare(wanted[0], wanted[1], "f32").agrees
    assert compare(wanted[0], wanted[-1], "f32").agrees  # an empty slot


def test_an_adapter_that_is_refused_ends_no_rank(files: ModelFiles, tmp_path: Path) -> None:
    """Of too large a rank, and of values that are not finite."""
    launch = Launch(files, 2, adapters=replace(SLOTS, max_rank=4))
    large, small = (
        read_adapter(make_tiny_adapter(launch.spec, slot, tmp_path / str(slot)), launch.spec, str(slot))
        for slot in (1, 2)
    )
    broken = make_tiny_adapter(launch.spec, 2, tmp_path / "broken", size=float("inf"))
    runner = launch.over_ranks()
    try:
        driver = launch.ready(runner)
        with pytest.raises(Unsupported, match="the adapter's rank is 8 and the slots have room for 4"):
            runner.load_adapter(1, large.weights)
        wanted = driver.score(driver.add(random_prompt(60, 2), 1))
        runner.load_adapter(1, small.weights)
        with pytest.raises(WeightsError, match="not finite"):
            runner.load_adapter(1, read_adapter(broken, launch.spec, "broken").weights)
        found = driver.score(driver.add(random_prompt(60, 2), 1))
    finally:
        runner.close()
    assert compare(wanted, found, "f32").agrees, "the slot is empty on every rank"


@pytest.mark.parametrize("parallel", [{"num_ranks": 2}], indirect=True)
def test_each_rank_holds_its_part(parallel: tuple[Launch, TensorParallelRunner]) -> None:
    launch, runner = parallel
    launch.ready(runner)
    planned = {part.name: part.size_bytes for part in launch.plan.parts}
    measured = {part.name: part.size_bytes for part in runner.memory()}
    assert measured["weights"] == planned["weights"]
    assert measured["kv"] == planned["kv"]


@pytest.mark.parametrize("parallel", [{"num_ranks": 2}], indirect=True)
def test_a_rank_that_is_killed_ends_the_runner_with_a_reason(
    parallel: tuple[Launch, TensorParallelRunner],
) -> None:
    launch, runner = parallel
    driver = launch.ready(runner)
    sequence = driver.add(random_prompt(5, 1))
    driver.run([greedy_work(sequence)])
    (rank,) = runner._ranks
    runner.check_ranks()
    rank.process.kill()
    rank.process.wait()
    with pytest.raises(DeviceLost, match="rank 1 has ended with code -9"):
        driver.run([greedy_work(sequence)])


@pytest.mark.parametrize(
    ("opens", "reason"),
    [
        (open_unforeseen, "rank 1: TypeError: a kernel takes no argument 'num_rows'"),
        (open_without_memory, "rank 1: OutOfMemory: .*NPU out of memory"),
    ],
)
def test_a_rank_that_fails_in_a_step_ends_it_with_its_words(
    files: ModelFiles, opens: OpensRank, reason: str
) -> None:
    launch = Launch(files, 2)
    runner = launch.over_ranks(opens)
    try:
        driver = launch.ready(runner)
        with pytest.raises(DeviceLost, match=reason):
            driver.run([greedy_work(driver.add(random_prompt(5, 1)))])
    finally:
        runner.close()


@pytest.mark.parametrize("parallel", [{"num_ranks": 2}], indirect=True)
def test_rank_0_that_fails_in_a_step_waits_for_no_other(
    parallel: tuple[Launch, TensorParallelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 stands in the collective of the logits, where no word reaches it."""
    launch, runner = parallel
    driver = launch.ready(runner)
    sample = runner._inner.sample

    def without_memory(step: int, sampling: Sampling) -> None:
        runner._inner._step.failure = OutOfMemory("NPU out of memory")  # type: ignore[attr-defined]
        sample(step, sampling)

    monkeypatch.setattr(runner._inner, "sample", without_memory)
    monkeypatch.setattr(runner._inner, "close", lambda: pytest.fail("the device is waited for"))
    with pytest.raises(DeviceLost, match="rank 0 left a step of 2 ranks: NPU out of memory"):
        driver.run([greedy_work(driver.add(random_prompt(5, 1)))])
    process = runner._ranks[0].process
    runner.close()
    assert process.returncode == -signal.SIGKILL, "by the end of its socket, and not after its time"


def test_a_rank_that_cannot_start_says_why(files: ModelFiles) -> None:
    launch = Launch(files, 2)
    with pytest.raises(DeviceLost, match="rank 1: BackendError: NPU 1 cannot be opened: 507018"):
        launch.over_ranks(refuse_rank_1)


@pytest.mark.parametrize("opener", ["leave_before_the_group", "leave_before_the_first_collective"])
def test_a_rank_that_ends_while_the_ranks_meet_ends_the_start_and_all_others(
    files: ModelFiles, opener: str
) -> None:
    """The others wait for it inside torch, which would let them for five minutes; so would this process."""
    module = "trivet_ascend_emulated.lost_meeting"
    command = [sys.executable, "-m", module, str(files.path), opener]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEETING_TIMEOUT.seconds / 2)
    assert done.returncode == 0, done.stderr
    kind, reason, num_started, num_alive = json.loads(done.stdout)
    assert (kind, num_started, num_alive) == ("DeviceLost", 3, 0)
    assert reason.startswith("rank 3 has ended with code 7 without a word"), "the cause, whoever misses it"


def test_a_rank_without_room_is_a_model_that_does_not_fit(files: ModelFiles) -> None:
    """And no lost device: the engine ends with the code of what cannot start."""
    launch = Launch(files, 2)
    runner = launch.over_ranks(open_too_small_rank_1)
    runner.load(launch.weights, lambda done, total: None)
    with pytest.raises(DoesNotFit, match="rank 1: the KV cache takes 2 GiB"):
        runner.allocate_kv()
    runner.close()


@pytest.mark.parametrize("parallel", [{"num_ranks": 2}], indirect=True)
def test_a_rank_that_fails_in_a_start_ends_what_rank_0_waits_in(
    parallel: tuple[Launch, TensorParallelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a collective of a device, which nothing but an abort ends."""
    _, runner = parallel
    is_aborted = threading.Event()

    def warm_up() -> None:
        assert is_aborted.wait(30)
        raise RuntimeError("NCCL communicator was aborted")

    monkeypatch.setattr(runner._inner, "warm_up", warm_up)
    monkeypatch.setattr(runner, "_abort_collectives", is_aborted.set)
    runner._ranks[0].process.kill()
    with pytest.raises(DeviceLost, match="rank 1 has ended with code -9"):
        runner.warm_up()
    monkeypatch.undo()


def test_an_operator_is_told_of_an_operation_that_gave_way_to_its_twin(files: ModelFiles) -> None:
    launch = Launch(files, 1, "bf16")
    runner = AscendRunner(launch.spec, launch.plan, launch.shape, EmulatedDevice(TOTAL_BYTES))
    runner.ops.table = replace(NPU, swiglu=lambda x: NPU.swiglu(x) * 1.2)
    runner.load(launch.weights, lambda done, total: None)
    (notice,) = runner.notices()
    runner.close()
    assert notice.startswith("swiglu failed its self-test")
    assert "trivet selftest ascend" in notice


def test_what_other_ranks_notice_is_told_with_their_numbers(files: ModelFiles) -> None:
    notice = "swiglu runs as its twin"
    runner = Launch(files, 2).over_ranks(open_noticing)
    found = [runner.notices()]
    runner._inner.notices = lambda: (notice,)  # type: ignore[method-assign]
    found.append(runner.notices())
    runner.close()
    assert found == [(f"rank 1: {notice}",), (notice,)], "once where all have it"
    assert told_by([1, 3], 4, notice) == f"ranks 1, 3: {notice}"


def test_ranks_tell_nothing_where_all_is_well(files: ModelFiles) -> None:
    runner = Launch(files, 2).over_ranks()
    found = runner.notices()
    runner.close()
    assert found == ()
