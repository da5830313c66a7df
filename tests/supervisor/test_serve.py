"""What `trivet demo` says while it is being ended, and a stop that comes when everything has ended."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trivet.config import Settings
from trivet_supervisor import serve
from trivet_supervisor.parent import Parent

GOES_ON = "it goes on serving"


@pytest.fixture
def settings() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        made = Settings(home=home, port=0)
        made.paths.create()
        yield made


@pytest.fixture
def show(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parent]:
    """Runs the demo to its end; its answer is what the test does."""

    def run(answer: Callable[[Parent], None], once: bool = False) -> Parent:
        parent = Parent(settings)
        monkeypatch.setattr(serve, "launch_demo", lambda client, out: None)
        monkeypatch.setattr(serve, "chat_once", lambda client, out: answer(parent))
        demo = serve._Show(settings, "token", parent, once)
        demo.start(chats=True)
        demo.join()
        return parent

    return run


def test_a_demo_that_goes_on_says_so(show, capsys) -> None:
    show(lambda parent: None)
    assert GOES_ON in capsys.readouterr().out


def test_ctrl_c_during_the_answer_leaves_that_unsaid(show, capsys) -> None:
    show(lambda parent: parent.request_stop())
    assert GOES_ON not in capsys.readouterr().out


def test_a_demo_whose_reader_went_away_ends_what_it_started(show) -> None:
    def answer(parent: Parent) -> None:
        raise BrokenPipeError

    assert show(answer, once=True).is_stopping


def test_a_stop_after_the_end_does_nothing(settings: Settings) -> None:
    parent = Parent(settings)
    parent.request_stop()
    parent.request_stop()  # twice: it drains nothing
    parent.run(lambda: pytest.fail("it must not come up"))
    assert not Path(settings.paths.supervisor_socket().removeprefix("ipc://")).exists()
    parent.request_stop()
    assert parent.is_stopping
