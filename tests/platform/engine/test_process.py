"""A real engine process on the null backend: requests in, pieces out, and every way to end."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from engine_under_test import DEADLINE_S, EngineUnderTest, Worker

from trivet.demo_model import find_demo_model
from trivet.engine import process as engine_process
from trivet.engine.assembly import Engine
from trivet.engine.process import (
    EXIT_CANNOT_START,
    EXIT_CRASHED,
    EXIT_DEVICE_LOST,
    EXIT_STOPPED,
    EngineProcess,
)
from trivet.engine_settings import EngineSettings
from trivet.errors import DeviceLost
from trivet.messages import (
    Abort,
    Drain,
    FinishReason,
    LaunchOrder,
    Phase,
    ResetPrefixCache,
    Stop,
    Submit,
)
from trivet.pooling_params import PoolingParams
from trivet.sampling_params import SamplingParams
from trivet.structured_outputs import StructuredOutputsParams

CPU_TICK_S = 0.01  # of the kernel's account
LONG = SamplingParams(temperature=0.0, max_tokens=8000, ignore_eos=True)  # 8 s


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory, watch: Any) -> Iterator[Callable[..., EngineUnderTest]]:
    started: list[EngineUnderTest] = []

    def starter(model: Path | None = None, **settings: str) -> EngineUnderTest:
        run_dir = tmp_path_factory.mktemp("run")
        started.append(EngineUnderTest(run_dir, model or find_demo_model(), settings, watch))
        return started[-1]

    yield starter
    for engine in started:
        engine.close()


@pytest.fixture
def engine(start: Callable[..., EngineUnderTest]) -> EngineUnderTest:
    engine = start(**{"options.step_ms": "1"})
    engine.beat_where(lambda beat: beat.phase is Phase.READY)
    return engine


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """Of the test's own engine where it asks for one, else of one that all such tests leave as it was."""
    of = request.getfixturevalue("engine" if "engine" in request.fixturenames else "lasting_engine")
    worker = Worker(of.run_dir)
    yield worker
    worker.socket.close()


def test_ready_comes_after_a_token_and_states_the_memory(engine: EngineUnderTest) -> None:
    beat = engine.beat_where(lambda beat: beat.phase is Phase.READY and bool(beat.memory))
    assert beat.load.generation_tokens >= 1
    assert beat.pid == engine.process.pid
    assert dict(beat.memory)


def test_an_idle_engine_leaves_the_processor_alone(engine: EngineUnderTest) -> None:
    """Under 2 % of a core, measured by the kernel over six beats: nothing polls or spins."""
    process = psutil.Process(engine.process.pid)

    def beat_and_use() -> tuple[float, float]:
        beat = engine.beat_where(lambda beat: beat.load.num_running == 0)
        assert beat.phase is Phase.READY
        used = process.cpu_times()
        return time.monotonic(), used.user + used.system

    begun_s, used_s = beat_and_use()
    for _ in range(6):
        end_s, now_used_s = beat_and_use()
    assert end_s - begun_s > 2
    assert now_used_s - used_s < 0.02 * (end_s - begun_s) + CPU_TICK_S


def test_pieces_tell_text_tokens_and_usage(worker: Worker) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    worker.ask(Submit("a", [1, 2, 3], params))
    worker.ask(Submit("b", [1, 2, 3], params))
    first = worker.pieces("a")
    assert sum(len(piece.token_ids) for piece in first) == 20
    assert first[-1].finish_reason is FinishReason.LENGTH
    assert (first[-1].prompt_tokens, first[-1].completion_tokens) == (3, 20)
    assert "".join(piece.text for piece in first)


def test_a_text_is_embedded_and_a_wrong_wish_refused(worker: Worker) -> None:
    params = SamplingParams()
    worker.ask(Submit("e", [5, 6, 7], params, pooling=PoolingParams(pooling="mean", dimensions=8)))
    (piece,) = worker.pieces("e")
    assert (piece.finish_reason, piece.prompt_tokens, piece.completion_tokens) == (FinishReason.STOP, 3, 0)
    assert piece.embedding is not None
    vector = np.frombuffer(piece.embedding, "<f4")
    assert vector.shape == (8,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    worker.ask(Submit("w", [5], params, pooling=PoolingParams(pooling="max")))
    (piece,) = worker.pieces("w")
    assert piece.failure is not None
    assert piece.failure.status == 400


def test_two_workers_may_use_the_same_request_id(engine: EngineUnderTest, worker: Worker) -> None:
    other = Worker(engine.run_dir)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    worker.ask(Submit("same", [5], params))
    other.ask(Submit("same", [6, 7], params))
    mine, theirs = worker.pieces("same"), other.pieces("same")
    other.socket.close()
    assert (mine[-1].prompt_tokens, theirs[-1].prompt_tokens) == (1, 2)


def test_a_request_that_cannot_run_is_answered_with_its_error(worker: Worker) -> None:
    worker.ask(Submit("long", [1] * 9000, SamplingParams()))
    failure = worker.pieces("long")[-1].failure
    assert failure is not None
    assert (failure.code, failure.status) == ("context_length_exceeded", 400)
    worker.ask(Submit("bad", [1], SamplingParams(temperature=-1.0)))
    failure = worker.pieces("bad")[-1].failure
    assert failure is not None
    assert "temperature" in failure.message


def test_an_abort_frees_the_sequence(engine: EngineUnderTest, worker: Worker) -> None:
    worker.ask(Submit("gone", [1], LONG))
    worker.pieces("gone", is_last=lambda piece: bool(piece.token_ids))
    worker.ask(Abort("gone"))
    engine.beat_where(lambda beat: beat.load.num_running == 0 and beat.load.num_finished.get("abort") == 1)


def test_an_abort_that_leaves_the_engine_idle_shows_in_its_load(
    start: Callable[..., EngineUnderTest],
) -> None:
    engine = start(**{"options.max_in_flight": "1", "options.step_ms": "5"})  # no step follows the abort
    engine.beat_where(lambda beat: beat.phase is Phase.READY)
    worker = Worker(engine.run_dir)
    worker.ask(Submit("gone", [1], LONG))
    worker.pieces("gone", is_last=lambda piece: bool(piece.token_ids))
    worker.ask(Abort("gone"))
    engine.beat_where(lambda beat: beat.load.num_running == 0 and beat.load.num_finished.get("abort") == 1)
    worker.socket.close()


def test_the_sequences_of_a_worker_that_vanishes_are_aborted(engine: EngineUnderTest) -> None:
    worker = Worker(engine.run_dir)
    worker.ask(Submit("orphan", [1], LONG))
    worker.pieces("orphan", is_last=lambda piece: bool(piece.token_ids))
    worker.socket.close()
    engine.beat_where(lambda beat: beat.load.num_running == 0 and beat.load.num_finished.get("abort") == 1)


def test_a_deadline_comes_with_the_request(worker: Worker) -> None:
    worker.ask(Submit("late", [1], LONG, deadline_s=time.monotonic() + 2.0))
    last = worker.pieces("late")[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.LENGTH, "deadline")
    assert last.completion_tokens > 0


def test_a_deadline_that_passes_while_a_grammar_is_compiled_counts(
    engine: EngineUnderTest, worker: Worker
) -> None:
    hostile = {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(1, 30)]}
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=hostile))
    worker.ask(Submit("late", [1], params, deadline_s=time.monotonic() + 0.2))
    (piece,) = worker.pieces("late")
    assert piece.failure is not None
    assert piece.failure.code == "deadline_passed"
    assert piece.failure.retry_after_s is not None
    engine.beat_where(lambda beat: beat.load.num_deadlines_passed == 1)


def test_the_prefix_cache_is_reset_when_asked_for(engine: EngineUnderTest, worker: Worker) -> None:
    prompt, params = [7] * 300, SamplingParams(temperature=0.0, max_tokens=1)
    worker.ask(Submit("first", prompt, params))
    worker.pieces("first")
    worker.ask(ResetPrefixCache("reset"))
    assert worker.pieces("reset")[-1].cached_tokens == 256
    worker.ask(Submit("second", prompt, params))
    assert worker.pieces("second")[-1].cached_tokens == 0


def test_garbage_on_the_data_socket_harms_nobody(worker: Worker) -> None:
    deep = b"\x94\xa6Submit\xa4deep" + b"\x91" * 5000 + b"\xc0"
    for frame in (b"", b"\xc1", os.urandom(200), msgspec.msgpack.encode(["Submit", 1, 2]), deep):
        worker.socket.send(frame)
    worker.socket.send_multipart([b"", b"x", b"y"])
    worker.ask(Submit("fine", [1], SamplingParams(max_tokens=1)))
    assert worker.pieces("fine")[-1].failure is None


@pytest.mark.parametrize(
    "message",
    [
        ["Submit", "odd", [1], {"temperature": "warm"}],
        ["Submit", "odd"],
        ["Submit", "odd", [1], {}, "urgent"],
        ["AKindThatComesLater", "odd", 1.5],
    ],
    ids=["field", "short", "priority", "kind"],
)
def test_a_request_of_another_version_is_answered(worker: Worker, message: list[object]) -> None:
    """With a 503, on which the web side asks another replica; it would wait for ever otherwise."""
    worker.socket.send(msgspec.msgpack.encode(message))
    (piece,) = worker.pieces("odd")
    assert piece.failure is not None
    assert (piece.failure.status, piece.finish_reason) == (503, FinishReason.ERROR)
    assert "cannot read the request" in piece.failure.message
    worker.ask(Submit("fine", [1], SamplingParams(max_tokens=1)))
    assert worker.pieces("fine")[-1].failure is None


def test_a_drain_finishes_what_runs_and_refuses_what_comes(engine: EngineUnderTest, worker: Worker) -> None:
    worker.ask(Submit("running", [1], SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)))
    worker.pieces("running", is_last=lambda piece: bool(piece.token_ids))
    engine.tell(Drain("lease", 60.0))
    engine.beat_where(lambda beat: beat.phase is Phase.DRAINING)
    worker.ask(Submit("late", [1], SamplingParams()))
    refused = worker.pieces("late")[-1].failure
    assert refused is not None
    assert refused.status == 503
    assert engine.process.wait(DEADLINE_S) == EXIT_STOPPED


def test_a_drain_deadline_says_that_the_instance_was_stopped(engine: EngineUnderTest, worker: Worker) -> None:
    worker.ask(Submit("cut", [1], LONG))
    worker.pieces("cut", is_last=lambda piece: bool(piece.token_ids))
    engine.tell(Drain("lease", 0.05))
    failure = worker.pieces("cut")[-1].failure
    assert failure is not None
    assert (failure.code, failure.status) == ("instance_stopped", 503)
    assert "drain deadline" in failure.message
    assert engine.process.wait(DEADLINE_S) == EXIT_STOPPED


def test_a_stop_ends_running_sequences_with_an_error(engine: EngineUnderTest, worker: Worker) -> None:
    worker.ask(Submit("cut", [1], LONG))
    worker.pieces("cut", is_last=lambda piece: bool(piece.token_ids))
    engine.tell(Stop("lease"))
    last = worker.pieces("cut")[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert last.failure is not None
    assert last.failure.code == "instance_stopped"
    assert engine.process.wait(DEADLINE_S) == EXIT_STOPPED


def test_requests_that_come_with_the_stop_are_answered(engine: EngineUnderTest, worker: Worker) -> None:
    worker.ask(Submit("first", [1], LONG))
    worker.pieces("first", is_last=lambda piece: bool(piece.token_ids))
    os.kill(engine.process.pid, signal.SIGSTOP)
    engine.tell(Stop("lease"))
    for number in range(100):  # more than a turn takes
        worker.ask(Submit(f"late-{number}", [1], LONG))
    os.kill(engine.process.pid, signal.SIGCONT)
    assert worker.pieces("late-50")[-1].failure is not None
    assert engine.process.wait(DEADLINE_S) == EXIT_STOPPED


def test_sigterm_stops_an_idle_engine(engine: EngineUnderTest) -> None:
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(DEADLINE_S) == EXIT_STOPPED


def test_an_engine_that_cannot_start_says_why(start: Callable[..., EngineUnderTest], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    engine = start(tmp_path)
    beat = engine.beat_where(lambda beat: beat.phase is Phase.FAILED)
    assert "model.safetensors" in beat.reason
    assert engine.process.wait(DEADLINE_S) == EXIT_CANNOT_START


def test_a_step_that_does_not_end_ends_the_engine_with_the_stacks_of_its_threads(
    start: Callable[..., EngineUnderTest], capfd: pytest.CaptureFixture[str]
) -> None:
    engine = start(step_timeout_s="0.2", **{"options.step_ms": "30000"})
    reason = engine.beat_where(lambda beat: beat.phase is Phase.FAILED).reason
    assert "step_timeout_s is 0.2" in reason
    assert engine.process.wait(DEADLINE_S) == EXIT_CRASHED
    stacks = capfd.readouterr().err
    assert "in collect" in stacks
    assert "in step" in stacks


def test_an_idle_engine_whose_rank_has_ended_does_not_wait_for_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be shown as ready, and the next request would fail."""
    order = LaunchOrder(
        instance_id="t1",
        lease="lease",
        model_path=str(find_demo_model()),
        served_model_name="tiny",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(tmp_path),
    )
    process, looks = EngineProcess(order), list[Phase]()
    load = process._load

    def loaded(settings: EngineSettings) -> Engine:
        engine = load(settings)

        def check_ranks() -> None:
            looks.append(process._heart.phase)
            if len(looks) > 2:
                raise DeviceLost("rank 1 has ended with code -9")

        monkeypatch.setattr(engine.runner, "check_ranks", check_ranks, raising=False)
        return engine

    monkeypatch.setattr(process, "_load", loaded)
    assert process.run() == EXIT_DEVICE_LOST
    assert looks == [Phase.READY] * 3


@pytest.mark.parametrize(
    ("limit_bytes", "told"), [(1 << 27, "more than the 0.12 GiB"), (-1, "from its host")]
)
def test_an_engine_without_memory_says_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, told: str
) -> None:
    order = LaunchOrder(
        instance_id="t1",
        lease="lease",
        model_path=str(find_demo_model()),
        served_model_name="tiny",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(tmp_path),
    )

    def load(settings: EngineSettings) -> Engine:
        raise MemoryError

    process, reasons = EngineProcess(order), list[str]()
    monkeypatch.setattr(process, "_load", load)
    monkeypatch.setattr(process._heart, "set_phase", lambda phase, reason="": reasons.append(reason))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit_bytes, limit_bytes))
    assert process.run() == EXIT_CRASHED
    assert told in reasons[-1]


@pytest.mark.parametrize(("code", "is_left"), [(EXIT_DEVICE_LOST, True), (EXIT_CRASHED, False)])
def test_threads_that_wait_for_a_lost_device_do_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_left: bool
) -> None:
    """An ordinary exit would wait for what a driver holds."""
    ended: list[int] = []
    ends = SimpleNamespace(run=lambda: code, request_stop=lambda: None)
    context = SimpleNamespace(instance=lambda: SimpleNamespace(term=lambda: None))
    monkeypatch.setattr(engine_process, "EngineProcess", lambda order: ends)
    monkeypatch.setattr(engine_process, "read_order", lambda file: None)
    monkeypatch.setattr(engine_process, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15))
    monkeypatch.setattr(engine_process, "zmq", SimpleNamespace(Context=context))
    monkeypatch.setattr(engine_process.logging, "shutdown", lambda: None)
    monkeypatch.setattr(engine_process.sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(engine_process.os, "_exit", ended.append)
    assert engine_process.main([str(tmp_path / "order")]) == code
    assert ended == [code] * is_left


def test_an_unknown_setting_is_a_reason_not_a_traceback(start: Callable[..., EngineUnderTest]) -> None:
    engine = start(max_modle_len="12")
    assert "max_model_len" in engine.beat_where(lambda beat: beat.phase is Phase.FAILED).reason
