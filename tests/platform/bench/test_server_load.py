"""A load over HTTP, against a real server process with known delays."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import numpy as np
import pytest

from trivet.bench.arrivals import Arrivals
from trivet.bench.figures import failures_of
from trivet.bench.prompts import Form
from trivet.bench.server_load import ServerLoad
from trivet.bench.target import Target
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Lengths, Seeds, Shape, drawn
from trivet.errors import ConfigError

CLOSED = Arrivals(concurrency=2)


def _run(
    target: Target,
    shape: Shape,
    arrivals: Arrivals = CLOSED,
    form: Form = "ids",
    sampling: Mapping[str, object] = {},
) -> list[Timeline]:
    load = ServerLoad(target, sampling, form)
    workload = drawn(shape, form, load.id_range, Seeds(0, 1))(0)
    done: list[None] = []
    run = load.run(workload, arrivals, np.random.default_rng(3), lambda: done.append(None))
    assert len(done) == workload.num_requests
    assert run.extra["client_cpu_us_per_token"] > 0
    return run.timelines


def _shape(num_prompts: int, output_tokens: int = 4, num_turns: int = 1) -> Shape:
    return Shape(num_prompts, Lengths(6, 6), Lengths(output_tokens, output_tokens), num_turns=num_turns)


@pytest.fixture(scope="module")
def shared(start_sse_server):
    """One server for the tests that leave it alive."""
    return start_sse_server()


def test_times_are_those_of_the_server(shared) -> None:
    (timeline,) = _run(Target(shared.url, "steady"), _shape(1, 8))
    assert timeline.is_complete
    assert timeline.is_counted_by_server
    assert (timeline.num_tokens, timeline.num_prompt_tokens, timeline.num_cached_tokens) == (8, 7, 3)
    assert timeline.ttft_s >= shared.FIRST_S
    assert len(timeline.gaps_s) == 7
    assert timeline.ttft_s + sum(timeline.gaps_s) >= shared.FIRST_S + 7 * shared.GAP_S
    assert timeline.tpot_s is not None
    assert timeline.tpot_s >= sum(timeline.gaps_s) / 7, "to the end of the answer"


def test_tokens_have_the_distances_at_which_the_server_sends(shared) -> None:
    """In one of many runs: a reader that a busy machine holds up sees the next one early."""
    for _ in range(50):
        (timeline,) = _run(Target(shared.url, "steady"), _shape(1, 8))
        if min(timeline.gaps_s) >= 0.2 * shared.GAP_S:
            return
    raise AssertionError(f"tokens come together: {timeline.gaps_s}")


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
def test_every_form_is_asked_where_it_belongs(shared, form: Form) -> None:
    endpoint = "chat" if form == "chat" else "completions"
    target = Target(shared.url, "steady", endpoint, api_key="k", extra={"min_p": 0.1, "top_p": None})
    (timeline,) = _run(target, _shape(1), form=form, sampling={"temperature": 0.7, "top_p": 0.9})
    assert timeline.num_tokens == 4
    assert len(timeline.token_times_s) == 4  # a chat's first chunk holds a role and no text
    asked = shared.heard()["asked"][-1]
    assert asked["path"] == ("/v1/chat/completions" if form == "chat" else "/v1/completions")
    assert asked["authorization"] == "Bearer k"
    body = asked["body"]
    assert (body["temperature"], body["min_p"], body["max_tokens"]) == (0.7, 0.1, 4)
    assert "top_p" not in body
    assert body["stream_options"] == {"include_usage": True}
    assert body["stream"] is True
    assert isinstance(body["messages"] if form == "chat" else body["prompt"], str if form == "text" else list)


def test_the_closed_loop_keeps_its_number_of_requests_open(shared) -> None:
    timelines = _run(Target(shared.url, "steady"), _shape(6), Arrivals(concurrency=2))
    for timeline in timelines:
        now = timeline.due_s + 1e-6
        assert sum(t.due_s <= now < t.end_s for t in timelines) <= 2
    first, _, third = sorted(timelines, key=lambda t: t.due_s)[:3]
    assert third.due_s >= min(first.end_s, timelines[1].end_s)


def test_connections_are_used_again(shared) -> None:
    before = shared.heard()["connections"]
    _run(Target(shared.url, "steady"), _shape(6), Arrivals(concurrency=2))
    assert shared.heard()["connections"] == before + 2 + 1  # and the one that asks here


def test_a_server_that_closes_is_connected_anew(shared) -> None:
    timelines = _run(Target(shared.url, "closing"), _shape(4))
    assert all(timeline.is_complete for timeline in timelines)


def test_the_open_loop_sends_when_it_is_due(shared) -> None:
    arrivals = Arrivals(rate=100.0)
    timelines = _run(Target(shared.url, "steady"), _shape(10), arrivals)
    offsets = arrivals.offsets_s(10, np.random.default_rng(3))
    start = min(t.due_s for t in timelines)
    assert sorted(t.due_s - start for t in timelines) == pytest.approx(offsets)
    assert all(t.sent_s is not None and t.sent_s >= t.due_s for t in timelines)


def test_the_wait_for_a_place_counts_in_the_open_loop(shared) -> None:
    """Coordinated omission: ten requests due at once, one place; the last waits for nine others."""
    timelines = _run(Target(shared.url, "steady"), _shape(5, 2), Arrivals(concurrency=1, rate=1e6))
    last = max(timelines, key=lambda t: t.end_s)
    assert last.ttft_s > 4 * shared.FIRST_S
    assert last.lag_s > 4 * shared.FIRST_S


def test_a_conversation_resends_what_was_said(shared) -> None:
    timelines = _run(Target(shared.url, "steady", "chat"), _shape(1, 2, num_turns=3), form="chat")
    assert len(timelines) == 3
    assert timelines[1].due_s >= timelines[0].end_s
    messages = shared.heard()["asked"][-1]["body"]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"] == " w0 w1"


def test_without_usage_the_arrivals_are_counted_and_it_is_said(shared) -> None:
    (timeline,) = _run(Target(shared.url, "no-usage"), _shape(1))
    assert timeline.num_tokens == 4
    assert not timeline.is_counted_by_server


def test_an_answer_without_visible_text_is_counted_by_usage(shared) -> None:
    (timeline,) = _run(Target(shared.url, "silent"), _shape(1))
    assert timeline.is_complete
    assert timeline.num_tokens == 4
    assert timeline.ttft_s == timeline.e2e_s


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("strict", "HTTP 400: unknown field ignore_eos"),
        ("error", "error event: engine 7 was killed"),
        ("cut", "the stream ended without a finish reason or [DONE]"),
        ("plain", """no event stream but b'{"choices": [{"text": "all at once"}]}'"""),
        ("html", "HTTP 502: <h1>Bad gateway</h1>"),
    ],
)
def test_a_failure_is_named(shared, model: str, cause: str) -> None:
    timelines = _run(Target(shared.url, model), _shape(2), sampling={"ignore_eos": True})
    assert failures_of(timelines) == {cause: 2}


def test_a_field_that_is_refused_can_be_left_out(shared) -> None:
    target = Target(shared.url, "strict", extra={"ignore_eos": None})
    (timeline,) = _run(target, _shape(1), sampling={"ignore_eos": True})
    assert timeline.is_complete


def test_some_may_fail_while_others_are_answered(shared) -> None:
    timelines = _run(Target(shared.url, "busy"), _shape(9))
    assert failures_of(timelines) == {"HTTP 429: the queue is full": 3}


def test_an_answer_that_takes_too_long_is_given_up(shared) -> None:
    timelines = _run(Target(shared.url, "steady", timeout_s=0.06), _shape(2, 500))
    assert failures_of(timelines) == {"no complete answer in 0.06 s": 2}


def test_a_server_that_dies_fails_what_is_open_and_what_follows(sse_server) -> None:
    timelines = _run(Target(sse_server.url, "dies"), _shape(4, num_turns=2), form="chat")
    causes = failures_of(timelines)
    assert sum(causes.values()) == len(timelines) == 8
    assert causes["an earlier turn of the conversation failed"] == 4
    assert any(cause.startswith("the connection was closed in the middle of the answer") for cause in causes)
    later = failures_of(_run(Target(sse_server.url, "dies"), _shape(2)))
    assert all(cause.startswith("no connection: ") for cause in later), later


def test_a_name_with_several_addresses_that_all_refuse_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        both = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.1", "127.0.0.2")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        timelines = _run(Target(f"http://server:{port}", "steady"), _shape(1))
    (cause,) = failures_of(timelines)
    assert "127.0.0.2" in cause
    assert "timed out" not in cause


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://host:99999"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        ServerLoad(Target(url, "m"), {}, "ids")


def test_a_path_of_the_url_is_kept_and_v1_is_not_doubled() -> None:
    load = ServerLoad(Target("http://h/openai/v1/", "m"), {}, "ids")
    prompt = drawn(_shape(1), "ids", load.id_range, Seeds(0, 0))(0).conversations[0][0].prompt
    request = Target("http://h:81/openai/v1/", "m").request(prompt, 1, {})
    assert request.startswith(b"POST /openai/v1/completions HTTP/1.1\r\nHost: h:81\r\n")
