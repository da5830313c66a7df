"""`trivet run` on the null backend: no torch, deterministic tokens."""

from __future__ import annotations

import json

from trivet.demo_model import find_demo_model
from trivet.text.tokenizer import load_tokenizer
from trivet_null.backend import NullOptions

MODEL = str(find_demo_model())
NULL = ("--backend", "null", "--set", "max_model_len=512")


def test_run_prints_the_answer_as_it_comes(trivet) -> None:
    once = trivet("run", MODEL, *NULL, "--prompt", "hi", "--max-tokens", "5", "--temperature", "0")
    again = trivet("run", MODEL, *NULL, "--prompt", "hi", "--max-tokens", "5", "--temperature", "0")
    assert once.code == 0
    assert once.out.strip()
    assert once.out == again.out


def test_run_puts_the_prompt_through_the_chat_template_unless_raw(trivet) -> None:
    chat = json.loads(trivet("run", MODEL, *NULL, "--prompt", "hi", "--max-tokens", "2", "--json").out)
    raw = json.loads(
        trivet("run", MODEL, *NULL, "--prompt", "hi", "--max-tokens", "2", "--raw", "--json").out
    )
    assert chat["prompt_tokens"] > raw["prompt_tokens"] == 1
    assert (chat["completion_tokens"], chat["finish_reason"]) == (2, "length")


def test_run_that_fails_on_the_way_says_so(trivet, monkeypatch) -> None:
    token = load_tokenizer(MODEL).encode("hi", add_special_tokens=False)[0]
    options = NullOptions(nan_token=token)  # a prompt with this token has no finite logits
    monkeypatch.setattr(NullOptions, "parse", lambda given: options)
    done = trivet("run", MODEL, *NULL, "--prompt", "hi", "--raw")
    assert done.code == 1
    assert done.err.startswith("trivet: ")
    assert trivet("run", MODEL, *NULL, "--prompt", "hi", "--raw", "--json").code == 1


def test_run_answers_by_one_adapter(trivet) -> None:
    two = ("--adapter", "sql=/nowhere/sql", "--adapter", "tone=/nowhere/tone")
    done = trivet("run", MODEL, *NULL, "--prompt", "hi", *two)
    assert (done.code, "sql, tone are given, and one adapter answers a prompt" in done.err) == (2, True)


def test_run_of_a_missing_file_names_it(trivet) -> None:
    done = trivet("run", "./no-such.gguf", "--prompt", "hi")
    assert done.code == 1
    assert "no-such.gguf" in done.err
    assert done.err.count("\n") == 1


def test_run_of_a_name_without_a_server_says_how_a_path_looks(trivet, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRIVET_HOME", str(tmp_path))
    monkeypatch.setenv("TRIVET_PORT", "1")
    done = trivet("run", "smollm2", "--prompt", "hi")
    assert done.code == 1
    assert "'smollm2' is a name (a path has a slash: ./smollm2)" in done.err


def test_run_of_a_registered_name_finds_its_files(site, trivet) -> None:
    trivet("models", "add", MODEL, "--name", "demo")
    assert trivet("run", "demo", *NULL, "--prompt", "hi", "--max-tokens", "2").code == 0
    trivet("launch", "demo", "--name", "chat", "--no-wait")
    told = trivet("run", "chat", *NULL, "--message", "hi")
    assert (told.code, "'chat' is a deployment, and no model; it runs demo:1: give that" in told.err) == (
        1,
        True,
    ), told
    assert "model 'demo:7' is not registered" in trivet("run", "demo:7", *NULL, "--prompt", "hi").err
