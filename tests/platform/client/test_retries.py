"""What is sent once more, and after how long: over real connections, to a server that does as it is told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trivet import errors
from trivet.client import AsyncClient, Client
from trivet.client.retries import Retries, retry_after_s

CHAT = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
HANG_UP, STAY_SILENT = -1, -2  # in place of a status
STREAM = {"Content-Type": "text/event-stream"}


@dataclass
class Script:
    """Answers in order: status, headers, body; the last one stays."""

    answers: list[tuple[int, dict[str, str], bytes]]
    paths: list[str] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def serve(self, port: int = 0) -> ThreadingHTTPServer:
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # http.server's name
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.paths.append(self.path)
                script.was_asked.set()
                status, headers, body = script.answers[0]
                if len(script.answers) > 1:
                    script.answers.pop(0)
                if status == HANG_UP:
                    return
                if status == STAY_SILENT:
                    script.is_over.wait(60)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        return server


class Sync:
    """One call of the client for threads."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None

    def wait(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.on_wait()

    def __call__(self, url: str, ask: Callable[[Any], Any], **options: Any) -> Any:
        with Client(url, "key", **options) as client:
            client._connection._sleep = self.wait
            answer = ask(client)
            return list(answer) if isinstance(answer, Iterator) else answer


class Async(Sync):
    """The same one of the client for asyncio."""

    async def wait_async(self, wait_s: float) -> None:
        self.wait(wait_s)

    def __call__(self, url: str, ask: Callable[[Any], Any], **options: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient(url, "key", **options) as client:
                client._connection._sleep = self.wait_async
                answer = ask(client)
                if hasattr(answer, "__anext__"):
                    return [item async for item in answer]
                return await answer

        return asyncio.run(run())


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Sync:
    made: Sync = request.param()
    return made


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Script, str]]]:
    servers: list[ThreadingHTTPServer] = []
    scripts: list[Script] = []

    def start(*answers: tuple[int, dict[str, str], bytes], port: int = 0) -> tuple[Script, str]:
        script = Script(list(answers))
        scripts.append(script)
        servers.append(script.serve(port))
        return script, f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for script in scripts:
        script.is_over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def status(client: Any) -> Any:
    return client.status()


def chat(client: Any) -> Any:
    return client.chat.stream("m", [{"role": "user", "content": "Hello"}])


def launch(client: Any) -> Any:
    return client.deployments.create("m")


OK = (200, {}, b'{"version": "1"}')


@pytest.mark.parametrize("refusal", [429, 503])
def test_a_refusal_with_retry_after_is_waited_out(flavour: Sync, serve: Any, refusal: int) -> None:
    script, url = serve((refusal, {"Retry-After": "7"}, b""), (refusal, {"Retry-After": "3"}, b""), OK)
    assert flavour(url, status).version == "1"
    assert len(script.paths) == 3
    assert [int(wait_s) for wait_s in flavour.waits] == [7, 3]


def test_a_refused_stream_begins_anew(flavour: Sync, serve: Any) -> None:
    whole = CHAT + b"data: [DONE]\n\n"
    script, url = serve((503, {"Retry-After": "1"}, b""), (200, STREAM, whole))
    assert [chunk.text for chunk in flavour(url, chat)] == ["Hi"]
    assert len(script.paths) == 2


@pytest.mark.parametrize("body", [CHAT, b""], ids=["after a chunk", "after the head"])
def test_a_stream_that_has_begun_is_never_sent_again(flavour: Sync, serve: Any, body: bytes) -> None:
    script, url = serve((200, STREAM, body))
    with pytest.raises(errors.Unavailable, match=r"ended before \[DONE\]"):
        flavour(url, chat)
    assert len(script.paths) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((503, {}, b""), errors.Unavailable),
        ((500, {"Retry-After": "1"}, b""), errors.TrivetError),
        ((409, {"Retry-After": "1"}, b""), errors.Conflict),
        ((429, {"Retry-After": "301"}, b""), errors.Overloaded),  # longer than the client waits for anything
    ],
    ids=["no retry-after", "500", "409", "too long"],
)
def test_other_failures_are_told_at_once(flavour: Sync, serve: Any, answer: Any, kind: Any) -> None:
    script, url = serve(answer)
    with pytest.raises(kind) as caught:
        flavour(url, launch)
    assert type(caught.value) is kind
    assert len(script.paths) == 1


def test_the_last_refusal_is_raised_with_its_wait(flavour: Sync, serve: Any) -> None:
    script, url = serve((429, {"Retry-After": "7"}, b""))
    with pytest.raises(errors.Overloaded) as caught:
        flavour(url, status, max_retries=1)
    assert caught.value.retry_after_s == 7
    assert len(script.paths) == 2


def test_where_nothing_listens_yet_the_next_attempt_finds_it(flavour: Sync, serve: Any) -> None:
    with socket.socket() as held:  # nobody else gets its port, and nobody listens
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]

        def begin() -> None:
            held.close()
            serve(OK, port=port)

        flavour.on_wait = begin
        assert flavour(f"http://127.0.0.1:{port}", status).version == "1"
    assert len(flavour.waits) == 1


@pytest.mark.parametrize("ask", [launch, chat])
@pytest.mark.parametrize(
    "answer", [(HANG_UP, {}, b""), (200, {**STREAM, "Content-Length": "100"}, b"{")], ids=["before", "within"]
)
def test_a_connection_that_breaks_is_no_reason_to_ask_again(
    flavour: Sync, serve: Any, ask: Any, answer: Any
) -> None:
    script, url = serve(answer)
    with pytest.raises(errors.Unavailable, match="broke"):
        flavour(url, ask)
    assert len(script.paths) == 1


@pytest.mark.parametrize("ask", [launch, chat])
def test_a_server_that_stays_silent_is_not_asked_again(flavour: Sync, serve: Any, ask: Any) -> None:
    script, url = serve((STAY_SILENT, {}, b""))
    with pytest.raises(errors.Unavailable, match="nothing in time"):
        flavour(url, ask, timeout_s=0.2)
    script.was_asked.wait(20)  # it may hear later than the client gives up
    assert len(script.paths) == 1


def test_a_pool_that_is_in_use_is_named(flavour: Sync, serve: Any) -> None:
    _, url = serve(OK)
    with pytest.raises(errors.Unavailable, match="raise max_connections"):
        flavour(url, status, timeout_s=0.2, max_connections=0)


def test_a_page_is_no_stream(flavour: Sync, serve: Any) -> None:
    _, url = serve((200, {"Content-Type": "text/html"}, b"<html>"))
    with pytest.raises(errors.TrivetError, match="answered no stream"):
        flavour(url, chat)


def test_an_error_tells_the_request_by_which_the_log_has_it(flavour: Sync, serve: Any) -> None:
    _, url = serve((500, {"X-Request-ID": "abc"}, b""))
    with pytest.raises(errors.TrivetError) as caught:
        flavour(url, status)
    assert caught.value.__notes__ == ["request id abc"]


def test_options_of_a_copy_change_no_other() -> None:
    with Client("http://127.0.0.1:1", "key") as client:
        copy = client.with_options(timeout_s=1.5, max_retries=0)
        assert (copy._connection.wire.timeout_s, copy._connection.retries.max_retries) == (1.5, 0)
        assert copy.api_key == "key"
        assert copy._connection.http is client._connection.http
        assert (client._connection.wire.timeout_s, client._connection.retries.max_retries) == (300, 2)


def test_waits_for_a_connection_double_up_to_the_longest() -> None:
    retries = Retries(9, longest_wait_s=0.5, draw=lambda: 1.0)
    waits = [retries.after_no_connection(number) for number in range(4)]
    assert waits == [0.1, 0.2, 0.4, 0.5]
    assert retries.after_no_connection(9) is None


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [("0", 0), ("12", 12), (formatdate(1000, usegmt=True), 100), (formatdate(800, usegmt=True), 0)],
)
def test_retry_after_is_seconds_or_a_date(text: str, wait_s: float) -> None:
    assert retry_after_s({"retry-after": text}, lambda: 900.0) == wait_s


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "²"])
def test_a_retry_after_that_cannot_be_read_says_nothing(text: str) -> None:
    assert retry_after_s({"retry-after": text}) is None
