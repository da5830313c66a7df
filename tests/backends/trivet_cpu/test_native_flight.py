"""Steps in flight on the native runner's stream, where something goes wrong beside them."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import GREEDY, Driver, greedy_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.steps import Work
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import BackendError, OutOfMemory
from trivet.models.model_files import ModelFiles, open_model
from trivet.runners.step_state import warm_up_batch
from trivet_cpu.backend import CpuBackend
from trivet_cpu.native_library import NO_MEMORY
from trivet_cpu.native_runner import CpuNativeRunner

# Half a second of steps is queued when the program ends. Run in this folder.
ENDS_EARLY = """
import sys
from pathlib import Path
from test_native_flight import queue_steps, runner_of
from trivet.models.model_files import open_model

runner, _ = runner_of(open_model(Path(sys.argv[1])))
steps = queue_steps(runner, 0.5)
"""


def queue_steps(runner: CpuNativeRunner, for_s: float) -> list[object]:
    """What the stream works on; it must be kept until it is done."""
    batch = warm_up_batch(64, runner._plan.kv.block_size)
    first = runner._post(batch)
    runner._stream.wait()
    took_s = (first.progress.ended_ns - first.progress.started_ns) * 1e-9
    return [runner._post(batch) for _ in range(max(1, int(for_s / took_s)))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny_model("llama-tied", tmp_path_factory.mktemp("models")))


def runner_of(files: ModelFiles, **config: object) -> tuple[CpuNativeRunner, Driver]:
    spec = files.spec
    assert spec is not None
    backend = CpuBackend()
    settings = RunnerConfig(max_num_seqs=4, max_model_len=256, options={"kernels": "native"}, **config)  # type: ignore[arg-type]
    devices = backend.probe(1.0)
    plan = backend.plan(spec, files.weights, settings, devices)
    runner = backend.create_runner(spec, settings, plan, devices)
    assert isinstance(runner, CpuNativeRunner)
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    return runner, Driver(runner, plan, vocab_size=spec.num_tokens, max_num_seqs=4)


def test_a_program_ends_well_with_steps_in_flight(files: ModelFiles) -> None:
    """As scripts end that never close their `LLM`: the threads must not outlive the memory."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY, str(files.path)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_threads_end_with_a_runner_that_nobody_closed(files: ModelFiles) -> None:
    runner, driver = runner_of(files)
    stream = runner._stream
    driver.forward([greedy_work(driver.add(random_prompt(40, 1)))])
    del runner, driver
    gc.collect()
    assert stream._handle is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_that_ends_leaves_its_parent_s_threads_alone(files: ModelFiles) -> None:
    """It has none of them: to wait for their end would be for ever."""
    runner, driver = runner_of(files)
    child = os.fork()
    if not child:
        runner.close()
        os._exit(0)
    deadline_s = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert ended[1] == 0
    assert len(driver.generate([driver.add(random_prompt(9, 3))], 3)[0]) == 3
    runner.close()


def test_a_step_that_was_lost_is_done_before_its_buffer_comes_again(files: ModelFiles) -> None:
    """A second Ctrl-C leaves the core without the step that was submitted last."""
    runner, driver = runner_of(files)
    first = driver.forward([greedy_work(driver.add(random_prompt(40, 1)))])
    driver.sample(first)
    lost = driver.forward([greedy_work(driver.add(random_prompt(200, 2)))])
    state = runner._steps[lost.number]
    third = driver.forward([greedy_work(driver.add(random_prompt(40, 1)))])
    assert state.progress.ended_ns
    outputs = [driver.collect(first)]
    driver.sample(third)
    outputs.append(driver.collect(third))
    assert outputs[0].token_ids == outputs[1].token_ids
    assert not runner._steps, "nor is it kept"
    runner.close()


def test_threads_that_the_host_refuses_leave_those_that_are_there(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, driver = runner_of(files)
    expected = driver.generate([driver.add(random_prompt(9, 3))], 6)
    monkeypatch.setattr(runner._stream._cores, "refresh", lambda: True)
    monkeypatch.setattr(runner._library, "trivet_stream_create", lambda num_threads: None)
    assert driver.generate([driver.add(random_prompt(9, 3))], 6) == expected
    assert "ulimit -u" in caplog.text
    runner.close()
    runner._stream.wait()  # nothing is left to wait for


Post = Callable[..., int]


def _status_after(post: Post) -> Post:
    """The kernels say so of a step under way."""

    def failing(*arguments: object) -> int:
        number = post(*arguments)
        progress = ctypes.cast(arguments[-1], ctypes.POINTER(_progress_of(arguments[-1])))
        progress.contents.status = 1
        return number

    return failing


def _progress_of(reference: object) -> type[ctypes.Structure]:
    structure = reference._obj  # type: ignore[attr-defined]
    return type(structure)


def _refused(post: Post) -> Post:
    """Nothing could be queued."""

    def failing(*arguments: object) -> int:
        raise MemoryError(NO_MEMORY)

    return failing


@pytest.mark.parametrize("fails", [_status_after, _refused])
@pytest.mark.parametrize("name", ["trivet_post_forward", "trivet_post_sample"])
def test_a_step_without_memory_fails_alone(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[[Post], Post]
) -> None:
    """With the one behind it; contract, rule 9."""
    runner, driver = runner_of(files)
    expected = driver.generate([driver.add(random_prompt(20, 7))], 3)
    with monkeypatch.context() as patch:
        patch.setattr(runner._library, name, fails(getattr(runner._library, name)))
        step = driver.forward([greedy_work(driver.add(random_prompt(20, 8)))])
        driver.sample(step)
    behind = driver.forward([greedy_work(driver.add(random_prompt(20, 9)))])
    with pytest.raises(OutOfMemory, match="max_num_batched_tokens"):
        driver.collect(step)
    with pytest.raises(BackendError, match="not in flight"):
        driver.collect(behind)
    assert driver.generate([driver.add(random_prompt(20, 7))], 3) == expected
    runner.close()


@pytest.mark.parametrize("fails", [_status_after, _refused])
def test_a_warm_up_without_memory_fails(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Post], Post]
) -> None:
    runner, _ = runner_of(files)
    monkeypatch.setattr(runner._library, "trivet_post_forward", fails(runner._library.trivet_post_forward))
    with pytest.raises(OutOfMemory, match="no memory"):
        runner.warm_up()
    runner.close()


def test_what_a_refused_draft_ends_is_ended_in_the_next_piece_of_logits_too(files: ModelFiles) -> None:
    """Rows behind the refused one leave the newest token alone, also where they are sampled later."""
    newest = []
    for max_logits_rows in (256, 1):
        runner, driver = runner_of(files, max_logits_rows=max_logits_rows)
        sequence = driver.add(random_prompt(30, 4))
        driver.prefill(sequence)
        drawn = driver.generate([driver.add(random_prompt(30, 4))], 1)[0][0]
        drafts = ((drawn + 1) % 100 + 3, 7, 9)
        rows = tuple(replace(GREEDY, target=draft) for draft in drafts)
        _, output = driver.run([Work(sequence, 4, (0, 1, 2, 3), (*rows, GREEDY), drafts)])
        assert int(output.num_tokens[0]) == 1
        assert len(set(output.token_ids.tolist())) > 1, "else nothing would show"
        newest.append(int(runner._newest[sequence.slot]))
        assert newest[-1] == drawn
        runner.close()
    assert newest[0] == newest[1]
