"""The supervisor as a process of its own over real engines on the null backend; real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest
import zmq

from trivet.config import Settings, engine_address, settings_to_environment
from trivet.contract import DeviceInfo
from trivet.demo_model import find_demo_model
from trivet.messages import FinishReason, StepReport, Submit
from trivet.models.model_files import open_model
from trivet.sampling_params import SamplingParams
from trivet_registry.database import Database, open_database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instances_store import list_instances
from trivet_registry.models_store import register_model
from trivet_registry.tables import Instance
from trivet_supervisor.client import SupervisorClient
from trivet_supervisor.device_refresh import refresh_devices
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.direct_stop import end_engines
from trivet_supervisor.launchers.process_table import leased_pids, start_time

DEADLINE_S = 120.0


class Home:
    """A home with a registered model; engines are told by environment to use one thread."""

    def __init__(self, folder: str) -> None:
        self.settings = Settings(home=folder, drain_timeout_s=10.0)
        self.settings.paths.create()
        self.database: Database = open_database(self.settings.resolved_database_url)
        self.client = SupervisorClient(self.settings.paths, timeout_s=5)
        with self.database.session() as session:
            self.version = register_model(session, open_model(find_demo_model()), "smol")
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.pipe: int | None = None

    def start_supervisor(self) -> int:
        read, self.pipe = os.pipe()
        with (self.settings.paths.logs / "supervisor.log").open("ab") as log:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "trivet_supervisor", "--parent-fd", str(read)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **settings_to_environment(self.settings)},
                stderr=log,
                stdout=log,
                pass_fds=[read],
            )
        os.close(read)
        self.until(lambda: self.client.status() is not None, "the supervisor answers")
        return self.supervisor.pid

    def close_pipe(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def wait_supervisor(self) -> int:
        assert self.supervisor is not None
        return self.supervisor.wait(DEADLINE_S)

    def launch(self, *names: str) -> None:
        with self.database.session() as session:
            for name in names:
                create_deployment(session, name=name, version=self.version, backend="null")
        self.client.wake()

    def instances(self) -> list[Instance]:
        with self.database.reading() as session:
            return list(list_instances(session))

    def until(self, is_true: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_true():
            seen = [(i.id, i.state, i.reason) for i in self.instances()]
            assert time.monotonic() < deadline_s, f"not in time: {what}; {seen}"
            time.sleep(0.02)

    def until_ready(self, count: int = 1) -> list[Instance]:
        self.until(lambda: [i.state for i in self.instances()].count("ready") == count, f"{count} are ready")
        return [i for i in self.instances() if i.state == "ready"]

    def clean_up(self) -> None:
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait(DEADLINE_S)
        self.close_pipe()
        for instance in self.instances():
            for pid in leased_pids(instance.lease or "-"):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
        self.database.close()


@pytest.fixture
def home(quick_disk: str | None) -> Iterator[Home]:
    # Short: socket paths hold 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tv", dir=quick_disk) as folder:
        home = Home(folder)
        yield home
        home.clean_up()


class Stream:
    """A request sent to an engine as a web worker does."""

    def __init__(self, home: Home, instance: Instance, num_tokens: int) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(engine_address(home.settings.paths.run, instance.id, "sock"))
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        self._socket.send(msgspec.msgpack.encode(Submit("r1", [1, 2, 3], params)))

    def read(self, stop_after: int = 10**9) -> tuple[int, FinishReason | None]:
        """Tokens read, and how it finished if it did."""
        num_tokens = 0
        while num_tokens < stop_after:
            assert self._socket.poll(DEADLINE_S * 1000), "the stream stands still"
            for piece in msgspec.msgpack.decode(self._socket.recv(), type=StepReport).pieces:
                num_tokens += len(piece.token_ids)
                if piece.finish_reason is not None:
                    self._socket.close()
                    return num_tokens, piece.finish_reason
        return num_tokens, None


def test_a_killed_supervisor_touches_no_stream_and_the_next_adopts(home: Home) -> None:
    home.start_supervisor()
    home.launch("chat")
    (before,) = home.until_ready()
    stream = Stream(home, before, 3000)
    num_read, _ = stream.read(stop_after=20)
    assert home.supervisor is not None
    home.supervisor.kill()
    home.wait_supervisor()
    home.start_supervisor()
    home.until(lambda: home.instances()[0].as_of > before.as_of, "the engine is followed again")
    more, finish_reason = stream.read()
    assert (num_read + more, finish_reason) == (3000, FinishReason.LENGTH)
    (after,) = home.instances()
    assert (after.state, after.pid, after.attempt) == ("ready", before.pid, 1)
    with home.database.reading() as session:
        assert any("adopted" in e.reason for e in list_events(session, instance=after.id))


def test_a_killed_engine_is_replaced_and_the_reason_is_written_down(home: Home) -> None:
    home.start_supervisor()
    home.launch("chat")
    (before,) = home.until_ready()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    home.until(lambda: home.instances()[0].attempt == 2, "a second attempt")
    (after,) = home.until_ready()
    assert after.pid != before.pid
    with home.database.reading() as session:
        events = list_events(session, instance=after.id)
    assert any(e.to_state == "failed" and "SIGKILL" in e.reason for e in events)


def test_a_frozen_engine_is_lost_and_replaced(home: Home) -> None:
    home.start_supervisor()
    home.launch("chat")
    (before,) = home.until_ready()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGSTOP)
    home.until(lambda: home.instances()[0].attempt == 2, "a second attempt")
    assert start_time(before.pid) is None
    home.until_ready()
    with home.database.reading() as session:
        moves = [(e.from_state, e.to_state) for e in list_events(session, instance=before.id)]
    assert ("ready", "lost") in moves


def test_ten_launches_at_once_are_ten_engines(home: Home) -> None:
    home.start_supervisor()
    home.launch(*(f"chat{n}" for n in range(10)))
    ready = home.until_ready(10)
    assert len({i.pid for i in ready}) == len({i.lease for i in ready}) == 10
    assert home.client.shut_down(0.0) is not None
    assert home.wait_supervisor() == 0
    assert {i.state for i in home.instances()} == {"stopped"}
    assert not any(list(leased_pids(i.lease or "")) for i in ready)


def test_a_supervisor_whose_parent_is_gone_leaves_and_its_engines_stay(home: Home) -> None:
    home.start_supervisor()
    home.launch("chat")
    (instance,) = home.until_ready()
    assert instance.pid is not None
    home.close_pipe()
    assert home.wait_supervisor() == 0
    assert start_time(instance.pid) == instance.process_start_time

    home.start_supervisor()
    assert home.supervisor is not None
    home.supervisor.terminate()  # SIGTERM ends the supervisor alone, too
    assert home.wait_supervisor() == 0
    assert start_time(instance.pid) == instance.process_start_time

    assert end_engines(home.settings, 5.0) == 1
    assert [i.state for i in home.instances()] == ["stopped"]
    assert start_time(instance.pid) is None


def test_a_shutdown_lets_running_requests_finish(home: Home) -> None:
    home.start_supervisor()
    home.launch("chat")
    (instance,) = home.until_ready()
    stream = Stream(home, instance, 1000)
    num_read, _ = stream.read(stop_after=20)
    home.client.shut_down(60.0)
    more, finish_reason = stream.read()
    assert (num_read + more, finish_reason) == (1000, FinishReason.LENGTH)
    assert home.wait_supervisor() == 0


def test_a_second_supervisor_refuses_and_names_the_first(home: Home) -> None:
    pid = home.start_supervisor()
    second = subprocess.run(
        [sys.executable, "-m", "trivet_supervisor"],
        env={**os.environ, **settings_to_environment(home.settings)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 2
    assert f"pid {pid}" in second.stderr
    assert home.client.status() is not None, "the first one's socket was not taken"


def test_devices_are_written_down(home: Home) -> None:
    from trivet_registry.devices_store import list_devices

    home.start_supervisor()

    def kinds() -> set[str]:
        with home.database.reading() as session:
            return {device.kind for device in list_devices(session)}

    home.until(lambda: {"cpu", "null"} <= kinds(), "devices")


def test_a_probe_that_breaks_does_not_end_the_refreshing_of_devices() -> None:
    is_ending = threading.Event()

    class Table(DeviceTable):
        num_asked = 0

        def all(self, max_age_s: float = 0) -> list[DeviceInfo]:
            self.num_asked += 1
            is_ending.set()
            raise KeyError("vram")

    table = Table({})
    refresh_devices(None, table, is_ending)  # type: ignore[arg-type]  # it does not come to the database
    assert table.num_asked == 1


def test_the_supervisor_imports_neither_torch_nor_a_vendor_library() -> None:
    code = (
        "import sys, trivet_supervisor.__main__, trivet_supervisor.serve;"
        "from trivet.plugins import load_plugins;"
        "[b.probe(5) for b in load_plugins().backends.values()];"
        "print([m for m in ('torch', 'torch_npu', 'transformers', 'flask', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
