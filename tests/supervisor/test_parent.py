"""`trivet serve` as an operator starts it: its two children, and what happens when one of the three dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import psutil
import pytest

from trivet.access import setup_code
from trivet.config import Settings
from trivet_supervisor.child import Child
from trivet_supervisor.parent import ASK_INTERVAL_S, COMING_UP_LIMIT_S, DEAF_LIMIT_S, Parent

DEADLINE_S = 120.0
TRIVET = str(Path(sys.executable).with_name("trivet"))


class Served:
    """A running serve without any model."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {**os.environ, "TRIVET_HOME": str(home)}
        self.out = home / "serve.out"
        with self.out.open("wb") as out:
            self.parent = subprocess.Popen(
                [TRIVET, "serve", "--port", "0"], env=self.environ, stdout=out, stderr=out
            )
        self.until(lambda: "╯" in self.out.read_text(), "the box is shown")
        found = re.search(r"(http://127\.0\.0\.1:\d+)/v1", self.out.read_text())
        assert found is not None
        self.url = found[1]

    def until(self, is_true: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline_s, f"not in time: {what}; {self.out.read_text()}"
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health/live", timeout=5).is_success
        except httpx2.TransportError:
            return False

    def children(self, word: str) -> list[int]:
        """Processes of this home with the word in their command line; of web its master, not its workers."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("TRIVET_HOME") == str(self.home)
                if is_ours and word in process.cmdline() and os.getsid(process.pid) == process.pid:
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
                continue
        return found

    def status(self) -> dict[str, object]:
        token = (self.home / "run" / "token").read_text().strip()
        answer = httpx2.get(
            f"{self.url}/platform/v1/status", headers={"Authorization": f"Bearer {token}"}, timeout=10
        )
        supervisor: dict[str, object] = answer.json()["supervisor"]
        return supervisor

    def clean_up(self) -> None:
        for pid in [self.parent.pid, *self.children("trivet_supervisor"), *self.children("trivet_web")]:
            with_group = os.killpg if pid != self.parent.pid else os.kill
            try:
                with_group(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.parent.wait(DEADLINE_S)


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        served = Served(Path(home))
        yield served
        served.clean_up()


def test_children_come_back_and_end_with_their_parent(served: Served) -> None:
    box = served.out.read_text()
    token = (served.home / "run" / "token").read_text().strip()
    assert f"{served.url}/setup?token={setup_code(token)}" in box
    assert str(served.home) in box
    assert "cpu 0" in box

    (web,) = served.children("trivet_web")
    os.killpg(web, signal.SIGKILL)
    served.until(lambda: served.children("trivet_web") not in ([], [web]), "web is started again")
    served.until(served.answers, "web answers on the same port")

    (supervisor,) = served.children("trivet_supervisor")
    os.kill(supervisor, signal.SIGKILL)
    served.until(lambda: served.status()["up"] and served.status()["pid"] != supervisor, "a new supervisor")

    served.parent.kill()
    served.parent.wait(DEADLINE_S)
    served.until(lambda: not served.children("trivet_supervisor"), "the supervisor notices")
    served.until(lambda: not served.children("trivet_web"), "web notices")
    assert not served.answers()
    for file in (each for each in served.home.rglob("*") if each.is_file() and each.name != "token"):
        assert token.encode() not in file.read_bytes(), (
            f"{file} has the token, by which anybody manages the site"
        )


def test_each_start_has_another_token_and_the_one_before_is_refused(served: Served) -> None:
    def ask(of: Served, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.get(f"{of.url}/platform/v1/status", headers=headers, timeout=10).status_code

    first = (served.home / "run" / "token").read_text().strip()
    assert ask(served, first) == 200
    served.parent.terminate()
    assert served.parent.wait(DEADLINE_S) == 0
    again = Served(served.home)
    try:
        second = (served.home / "run" / "token").read_text().strip()
        assert (ask(again, first), ask(again, second)) == (401, 200)
    finally:
        again.clean_up()


def test_sigterm_ends_everything_with_exit_code_0(served: Served) -> None:
    served.parent.terminate()
    assert served.parent.wait(DEADLINE_S) == 0
    assert not served.children("trivet_supervisor")
    assert not served.children("trivet_web")
    assert served.out.read_text().endswith("stopped\n")


def refused(home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRIVET, "serve", *arguments],
        env={**os.environ, "TRIVET_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_an_address_that_others_reach_is_refused_with_the_reason(tmp_path: Path) -> None:
    done = refused(tmp_path, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "--insecure" in done.stderr
    assert not (tmp_path / "run" / "token").exists()


def test_a_child_that_cannot_come_up_ends_the_serve_with_its_own_words() -> None:
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        done = refused(Path(home), "--port", "0", TRIVET_LAUNCHER="nonsense")
        assert done.returncode == 1
        assert "launcher 'nonsense'" in done.stderr
        assert "supervisor.log" in done.stderr


def test_a_registry_that_cannot_be_opened_is_told_before_anything_starts() -> None:
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        (Path(home) / "registry.db").write_bytes(b"\xff" * 8192)
        done = refused(Path(home), "--port", "0")
        assert done.returncode == 2
        assert re.fullmatch(r"trivet: database .* cannot be opened: file is not a database.*\n", done.stderr)
        assert not list((Path(home) / "logs").iterdir())


def test_a_log_that_cannot_be_opened_is_told_in_a_sentence() -> None:
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        (Path(home) / "logs" / "supervisor.log").mkdir(parents=True)
        done = refused(Path(home), "--port", "0")
        assert done.returncode == 1
        assert re.match(
            r"trivet: supervisor cannot be started: .*Is a directory: .*supervisor\.log", done.stderr
        )
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("192.0.2.7", "192.0.2.7"),
        ("fd00::7", "fd00::7"),
    ],
)
@pytest.mark.parametrize("tls_cert", [None, "/no/such/file.pem"])
def test_web_is_asked_where_it_listens_whatever_its_certificate_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, asked: str, tls_cert: str | None
) -> None:
    """A certificate that is just being renewed ended the serve."""
    made: list[tuple[str, str, int]] = []

    def connection(kind: str) -> Any:
        def make(host: str, port: int, **_: Any) -> Any:
            made.append((kind, host, port))
            answer = SimpleNamespace(status=421)
            return SimpleNamespace(request=lambda *_: None, getresponse=lambda: answer, close=lambda: None)

        return make

    monkeypatch.setattr("http.client.HTTPConnection", connection("http"))
    monkeypatch.setattr("http.client.HTTPSConnection", connection("https"))
    parent = Parent(Settings(home=str(tmp_path), host=host, port=8123, tls_cert=tls_cert))
    assert parent._web_answers(), "any answer is one"
    assert made[-1] == ("http" if tls_cert is None else "https", asked, 8123)


@pytest.mark.parametrize("has_answered", [True, False])
def test_a_supervisor_that_was_still_coming_up_is_no_error_at_the_end(
    tmp_path: Path, has_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(home=str(tmp_path))
    settings.paths.create()
    parent = Parent(settings)
    parent._client = cast(Any, SimpleNamespace(shut_down=lambda _: None))
    parent._num_stop_requests = 2  # Ctrl-C again: nothing is waited for
    parent.supervisor = Child("supervisor", ["sleep", "600"], os.environ, tmp_path / "log", 0, time.monotonic)
    parent.supervisor.start()
    if has_answered:
        parent._heard_pids["supervisor"] = parent.supervisor.pid
    parent._end_engines()
    assert not parent.supervisor.is_alive()
    assert ("has not ended the engines" in caplog.text) is has_answered


@pytest.mark.parametrize("has_answered", [True, False])
@pytest.mark.parametrize("deaf", ["supervisor", "web"])
def test_a_child_that_answers_nothing_is_replaced(tmp_path: Path, deaf: str, has_answered: bool) -> None:
    """It lives, so nothing but its silence tells."""
    clock = FakeClock()
    parent = Parent(Settings(home=str(tmp_path)), clock)
    answers = {"supervisor": deaf != "supervisor", "web": deaf != "web"}
    parent._client = cast(Any, SimpleNamespace(status=lambda: True if answers["supervisor"] else None))
    cast(Any, parent)._web_answers = lambda: answers["web"]
    for name in answers:
        setattr(parent, name, Child(name, ["sleep", "600"], os.environ, tmp_path / name, 0, clock))
        getattr(parent, name).start()
    child, other = (parent.web, parent.supervisor)[:: 1 if deaf == "web" else -1]
    before, others = child.pid, other.pid
    parent._heard_pids[deaf] = before if has_answered else None
    limit_s = DEAF_LIMIT_S if has_answered else COMING_UP_LIMIT_S
    clock.now_s += 10 * limit_s  # this process was stopped itself: that proves nothing
    for _ in range(int(limit_s / ASK_INTERVAL_S) - 1):
        parent._look_after_children()
        clock.now_s += ASK_INTERVAL_S
    assert child.pid == before
    parent._look_after_children()
    assert child.wait(DEADLINE_S)
    assert child.keep() == -signal.SIGKILL
    clock.now_s += 30
    child.keep()
    assert child.pid not in (None, before)
    assert other.pid == others
    for each in (child, other):
        each.kill()
        assert each.wait(DEADLINE_S)


class FakeClock:
    """Stands still until a test moves it."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
