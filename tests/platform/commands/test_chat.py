"""`trivet chat`."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from trivet.client.answers import ChatChunk, ChunkChoice, Delta, ServedModel
from trivet.commands.chat import ask, only_model


@pytest.fixture
def served(site, trivet):
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    site.requests.clear()
    return site


def test_a_message_is_answered_by_the_only_model(served, trivet) -> None:
    done = trivet("chat", "--message", "Capital of France?", "--system", "Be short.", "--temperature", "0")
    assert (done.code, done.out) == (0, "The capital is Paris.\n")
    body = served.requests[-1][2]
    assert body["model"] == "smollm2"
    assert body["temperature"] == 0
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_a_model_with_adapters_is_one_model() -> None:
    listed = [ServedModel(id="m"), ServedModel(id="m:sql", parent="m")]
    client = SimpleNamespace(models=SimpleNamespace(served=lambda: listed))
    assert only_model(client) == "m"


def test_json_of_an_answer_tells_how_fast_it_came(served, trivet) -> None:
    answer = json.loads(trivet("chat", "smollm2", "-m", "hi", "--json").out)
    assert answer["text"] == "The capital is Paris."
    assert answer["finish_reason"] == "stop"
    assert answer["completion_tokens"] == 5
    assert answer["ttft_ms"] > 0


def test_a_conversation_carries_what_was_said(served, trivet, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("first\n\nsecond\n"))
    assert trivet("chat").out == "The capital is Paris.\n" * 2
    last = served.requests[-1][2]["messages"]
    assert [message["content"] for message in last] == ["first", "The capital is Paris.", "second"]


def test_an_answer_that_breaks_is_an_error(served, trivet) -> None:
    served.break_stream = "error"
    done = trivet("chat", "-m", "hi")
    assert (done.code, done.err) == (1, "trivet: engine 7 was killed\n")
    assert done.out.startswith("The capital")


def test_without_a_model_it_says_how_to_launch_one(site, trivet) -> None:
    done = trivet("chat", "-m", "hi")
    assert done.code == 1
    assert "trivet launch MODEL" in done.err


def test_between_several_models_one_must_be_named(served, trivet) -> None:
    trivet("launch", "smollm2", "--name", "other", "--no-wait")
    done = trivet("chat", "-m", "hi")
    assert done.code == 1
    assert "other, smollm2" in done.err


def test_a_model_that_is_not_ready_yet_is_no_choice(served, trivet) -> None:
    served.deployments["smollm2"]["instances"][0]["states"] = ["loading"]
    assert "nothing is ready yet (smollm2)" in trivet("chat", "-m", "hi").err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_thinking_is_shown_on_a_terminal_only_and_is_no_part_of_the_answer(
    capsys, monkeypatch, is_terminal
) -> None:
    def chunk(**delta) -> ChatChunk:
        return ChatChunk(choices=(ChunkChoice(delta=Delta(**delta)),))

    chunks = [chunk(reasoning="Hm, "), chunk(reasoning="so."), chunk(content="Par"), chunk(content="is")]
    client = SimpleNamespace(chat=SimpleNamespace(stream=lambda *args, **fields: iter(chunks)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    answer = ask(client, "m", [], {}, show=True)
    shown = capsys.readouterr()
    assert answer.text == shown.out.strip() == "Paris"
    assert ("Hm, " in shown.err, "so." in shown.err) == (is_terminal, is_terminal)
    assert answer.ttft_ms is not None
