from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from trivet.errors import Unavailable
from trivet.launching import UNSEEN_EXIT, Confinement, ProcessIdentity, ProcessOrder
from trivet.messages import LaunchOrder
from trivet_supervisor.launchers import local
from trivet_supervisor.launchers.local import LocalHandle, LocalLauncher
from trivet_supervisor.launchers.process_table import leased_pids, start_time

T = TypeVar("T")
LEASE = f"launch-{os.getpid()}"


def eventually(get: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + 30
    while (found := get()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def launch_order(run_dir: Path, lease: str = LEASE) -> LaunchOrder:
    return LaunchOrder(
        instance_id="a1b2c3d4",
        lease=lease,
        model_path="m",
        served_model_name="m",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(run_dir),
    )


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., LocalHandle]]:
    def start(code: str, lease: str = LEASE, **confinement: Any) -> LocalHandle:
        command = [sys.executable, "-c", code]
        env = {"TRIVET_LEASE": lease, "ONLY": "this"}
        log = tmp_path / "logs" / "engine.log"
        told = launch_order(tmp_path, lease)
        handle = LocalLauncher(tmp_path).start(
            ProcessOrder(told, command, env, log, Confinement(**confinement))
        )
        started.append(handle)
        return handle

    started: list[LocalHandle] = []
    yield start
    for handle in started:
        handle.kill()
        eventually(handle.exit_code)


def test_an_engine_has_its_own_session_environment_and_log(
    launch: Callable[..., LocalHandle], tmp_path: Path
) -> None:
    handle = launch("import os; print(os.getsid(0) == os.getpid(), sorted(os.environ))")
    assert eventually(handle.exit_code) == 0
    text = (tmp_path / "logs" / "engine.log").read_text()
    assert text.startswith("True")
    assert "'ONLY', 'TRIVET_LEASE'" in text
    assert "PATH" not in text


def test_the_log_of_an_earlier_process_is_not_overwritten(
    launch: Callable[..., LocalHandle], tmp_path: Path
) -> None:
    for word in ("first", "second"):
        assert eventually(launch(f"print({word!r})").exit_code) == 0
    assert (tmp_path / "logs" / "engine.log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize(("code", "exit_code"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_exit_codes_are_told(launch: Callable[..., LocalHandle], code: str, exit_code: int) -> None:
    assert eventually(launch(code).exit_code) == exit_code


def test_what_an_engine_leaves_behind_is_killed_before_its_end_is_told(
    launch: Callable[..., LocalHandle],
) -> None:
    handle = launch("import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)")
    assert eventually(handle.exit_code) == 0
    assert not list(leased_pids(LEASE))


def test_an_engine_whose_rank_survives_sigkill_has_not_ended(
    launch: Callable[..., LocalHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hangs holds it, and with it the device's memory."""
    handle = launch("")
    signalled: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(local, "leased_pids", lambda lease: iter([424242]))
        patch.setattr(local, "_send", lambda pid, number: signalled.append(pid))
        eventually(handle._own_exit_code)
        assert handle.exit_code() is None
        assert signalled == [424242]
    assert eventually(handle.exit_code) == 0


def test_kill_ends_children_in_other_sessions_too(launch: Callable[..., LocalHandle]) -> None:
    handle = launch(
        "import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True).wait()"
    )
    eventually(lambda: True if len(list(leased_pids(LEASE))) == 2 else None)
    handle.kill()
    assert eventually(handle.exit_code) == -9
    assert not list(leased_pids(LEASE))


def test_an_adopted_engine_is_followed_to_its_end(launch: Callable[..., LocalHandle]) -> None:
    started = launch("import time; time.sleep(600)")
    eventually(lambda: True if list(leased_pids(LEASE)) else None)
    adopted = LocalLauncher(Path()).adopt(started.identity, LEASE)
    assert adopted is not None
    assert adopted.exit_code() is None
    adopted.terminate()
    assert eventually(adopted.exit_code) == UNSEEN_EXIT
    assert eventually(started.exit_code) == -15


def test_an_adopted_engine_leaves_no_file_descriptor_behind(launch: Callable[..., LocalHandle]) -> None:
    started = launch("import time; time.sleep(600)")
    eventually(lambda: True if list(leased_pids(LEASE)) else None)
    gc.collect()  # closes nothing in between
    before = num_pidfds()
    adopted = LocalLauncher(Path()).adopt(started.identity, LEASE)
    assert LocalLauncher(Path()).adopt(started.identity, "another lease") is None
    assert adopted is not None
    started.kill()
    assert eventually(started.exit_code) == -9
    assert eventually(adopted.exit_code) == UNSEEN_EXIT
    assert adopted.exit_code() == UNSEEN_EXIT
    assert num_pidfds() == before


def num_pidfds() -> int:
    """Of this process; sockets and files of other tests' threads may come and go."""
    kinds = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it was closed meanwhile
            kinds.append(os.readlink(f"/proc/self/fd/{fd}"))
    return kinds.count("anon_inode:[pidfd]")


def test_a_process_that_only_has_the_pid_is_not_adopted(launch: Callable[..., LocalHandle]) -> None:
    started = launch("import time; time.sleep(600)")
    eventually(lambda: True if list(leased_pids(LEASE)) else None)
    launcher, identity = LocalLauncher(Path()), started.identity
    assert launcher.adopt(identity, "another lease") is None
    assert launcher.adopt(ProcessIdentity(identity.pid, identity.start_time + 1), LEASE) is None
    own = start_time(os.getpid())
    assert own is not None
    assert launcher.adopt(ProcessIdentity(os.getpid(), own), LEASE) is None


def test_a_stranger_is_never_signalled(launch: Callable[..., LocalHandle]) -> None:
    stranger = launch("import time; time.sleep(600)", lease="the stranger's")
    handle = LocalHandle(stranger.identity, LEASE)
    handle.terminate()
    handle.kill()
    assert stranger.exit_code() is None
    stranger.kill()
    assert eventually(stranger.exit_code) == -9


def test_an_engine_is_found_by_its_lease_alone(launch: Callable[..., LocalHandle]) -> None:
    started = launch("import subprocess; subprocess.run(['/bin/sleep', '600'])")
    eventually(lambda: True if len(list(leased_pids(LEASE))) == 2 else None)
    found = LocalLauncher(Path()).find(LEASE)
    assert found is not None
    assert found.identity == started.identity
    assert LocalLauncher(Path()).find("no such lease") is None


def test_a_missing_interpreter_is_unavailable(tmp_path: Path) -> None:
    order = ProcessOrder(launch_order(tmp_path), ["/no/such/python"], {}, tmp_path / "x.log")
    with pytest.raises(Unavailable, match=r"/no/such/python.*\[backend.NAME\]"):
        LocalLauncher(tmp_path).start(order)


def test_a_variable_that_no_process_can_have_is_unavailable(tmp_path: Path) -> None:
    order = ProcessOrder(launch_order(tmp_path), [sys.executable], {"A": "b\0c"}, tmp_path / "x.log")
    with pytest.raises(Unavailable, match=r"null byte.*\[backend.NAME\]"):
        LocalLauncher(tmp_path).start(order)


def test_a_log_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    order = ProcessOrder(launch_order(tmp_path), [sys.executable], {}, Path("/proc/none/x.log"))
    with pytest.raises(Unavailable, match="log file"):
        LocalLauncher(tmp_path).start(order)


def test_every_rank_of_an_engine_is_told_with_what_names_it_for_ever(
    launch: Callable[..., LocalHandle],
) -> None:
    handle = launch(
        "import subprocess; subprocess.Popen(['/bin/sleep', '600'], start_new_session=True).wait()"
    )
    found = eventually(lambda: found if len(found := handle.processes()) == 2 else None)
    assert handle.identity in found
    assert all(start_time(each.pid) == each.start_time for each in found)


def test_an_engine_and_its_children_stay_on_their_cores(
    launch: Callable[..., LocalHandle], tmp_path: Path
) -> None:
    core, before = min(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    code = "import subprocess; subprocess.run(['/bin/grep', 'Cpus_allowed_list', '/proc/self/status'])"
    assert eventually(launch(code, cpus=frozenset({core})).exit_code) == 0
    assert (tmp_path / "logs" / "engine.log").read_text().split() == ["Cpus_allowed_list:", str(core)]
    assert os.sched_getaffinity(0) == before, "the supervisor itself goes where it was"


@pytest.mark.parametrize("cpus", [{9999}, {0, 9999}])
def test_cores_that_the_host_lacks_are_refused(launch: Callable[..., LocalHandle], cpus: set[int]) -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(Unavailable, match="cpus"):
        launch("pass", cpus=frozenset(cpus))
    assert os.sched_getaffinity(0) == before


def test_memory_beyond_the_limit_is_an_error_in_the_engine(
    launch: Callable[..., LocalHandle], tmp_path: Path
) -> None:
    code = """
import resource, time
while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
    time.sleep(0.01)  # the launcher sets it on the process that it has just started
bytearray(1 << 20)
print("small", flush=True)
bytearray(1 << 30)
"""
    assert eventually(launch(code, memory_limit_bytes=256 << 20).exit_code) == 1
    text = (tmp_path / "logs" / "engine.log").read_text()
    assert text.startswith("small")
    assert "MemoryError" in text


def test_an_engine_is_adopted_where_there_is_no_descriptor_for_it(
    launch: Callable[..., LocalHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = launch("import time; time.sleep(600)")
    eventually(lambda: True if list(leased_pids(LEASE)) else None)

    def none_left(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    adopted = LocalLauncher(Path()).adopt(started.identity, LEASE)
    assert adopted is not None
    assert adopted.exit_code() is None
    assert started.exit_code() is None, "nor was it taken for what a dead one had left"
    adopted.kill()
    assert eventually(adopted.exit_code) == UNSEEN_EXIT


def test_an_engine_of_another_host_is_not_looked_for_here() -> None:
    with pytest.raises(Unavailable, match="on host b, which launcher 'local' does not reach"):
        LocalLauncher(Path()).adopt(ProcessIdentity(1, 1.0, "b"), LEASE)
    with pytest.raises(Unavailable, match="on host b"):
        LocalLauncher(Path()).find(LEASE, None, "b")


def test_an_attempt_does_not_begin_while_an_earlier_one_hangs_in_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    write = local.write_order

    def slow(order: LaunchOrder) -> Path:
        if order.lease == "first":
            hangs.set()
            assert goes_on.wait(30)
        return write(order)

    monkeypatch.setattr(local, "write_order", slow)
    launcher, handles = LocalLauncher(tmp_path), []

    def start(lease: str) -> None:
        order = ProcessOrder(
            launch_order(tmp_path, lease),
            [sys.executable, "-c", "pass"],
            {"TRIVET_LEASE": lease},
            tmp_path / "logs" / "engine.log",
        )
        handles.append(launcher.start(order))

    first = threading.Thread(target=start, args=("first",))
    first.start()
    assert hangs.wait(30)
    with pytest.raises(Unavailable, match="an earlier attempt still hangs in its start"):
        start("second")
    goes_on.set()
    first.join(30)
    start("third")
    assert len(handles) == 2
    for handle in handles:
        assert eventually(handle.exit_code) == 0
