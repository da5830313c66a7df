"""`trivet run` and `generate` on the null backend: no torch, deterministic tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trivet.commands.offline import read_lines, whole_file
from trivet.demo_model import find_demo_model
from trivet.errors import RequestError
from trivet.text.tokenizer import load_tokenizer
from trivet_null.backend import NullOptions

MODEL = str(find_demo_model())
NULL = ("--backend", "null", "--set", "max_model_len=512")


@pytest.fixture
def lines(tmp_path: Path):
    def write(*values: object) -> str:
        file = tmp_path / "in.jsonl"
        file.write_text("\n".join(json.dumps(value) for value in values))
        return str(file)

    return write


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
    assert "has no version '7'" in trivet("run", "demo:7", *NULL, "--prompt", "hi").err


def test_generate_puts_an_error_where_a_line_cannot_run(trivet, lines, tmp_path: Path) -> None:
    long = {"prompt": "word " * 600, "id": "long"}
    source = lines({"prompt": "Hi"}, long)
    assert trivet("generate", MODEL, *NULL, "-i", source, "-o", str(tmp_path / "o")).code == 1
    first, second = (json.loads(line) for line in (tmp_path / "o").read_text().splitlines())
    assert first["error"] is None
    assert first["completion_tokens"] > 0
    assert second["id"] == "long"
    assert "the context is 512 tokens" in second["error"]


def test_generate_answers_each_line_in_order(trivet, lines, tmp_path: Path) -> None:
    source = lines(
        {"prompt": "one"},
        {"messages": [{"role": "user", "content": "two"}], "id": "b", "sampling": {"max_tokens": 2}},
    )
    out = tmp_path / "out.jsonl"
    done = trivet("generate", MODEL, *NULL, "-i", source, "-o", str(out), "--max-tokens", "4")
    assert done.code == 0
    assert f"2 prompts, 0 failed, 6 tokens: {out}" in done.err
    first, second = [json.loads(line) for line in out.read_text().splitlines()]
    assert (first["id"], first["completion_tokens"], first["prompt_tokens"]) == (0, 4, 1)
    assert (second["id"], second["completion_tokens"]) == ("b", 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": 5}, "line 2: Expected `str | null`, got `int`"),
        ({"prompt": "a", "messages": []}, "line 2: give either 'prompt' or 'messages'"),
        ({}, "line 2: give either 'prompt' or 'messages'"),
        ({"promt": "a"}, "unknown field `promt`"),
    ],
)
def test_a_wrong_line_is_named_before_the_model_is_loaded(trivet, lines, tmp_path, line, message) -> None:
    source = lines({"prompt": "fine"}, line)
    done = trivet("generate", "/no/model", "-i", source, "-o", str(tmp_path / "out"))
    assert done.code == 1
    assert message in done.err


@pytest.mark.parametrize("sampling", [{"temprature": 1}, {"top_p": "high"}])
def test_wrong_sampling_is_named(trivet, lines, tmp_path: Path, sampling) -> None:
    out = tmp_path / "out.jsonl"
    source = lines({"prompt": "a", "sampling": sampling})
    done = trivet("generate", MODEL, *NULL, "-i", source, "-o", str(out))
    assert done.code == 1
    assert next(iter(sampling)) in done.err
    assert list(tmp_path.iterdir()) == [Path(source)]  # neither the output nor half of it


def test_what_cannot_be_read_or_written_is_a_usage_error(trivet, lines, tmp_path: Path) -> None:
    source = lines({"prompt": "a"})
    assert trivet("generate", MODEL, "-i", str(tmp_path / "none"), "-o", "x").code == 2
    done = trivet("generate", MODEL, "-i", source, "-o", str(tmp_path / "none/out"))
    assert (done.code, "No such file" in done.err) == (2, True)


def test_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_text('\n{"prompt": "a"}\n\n')
    assert [line.prompt for line in read_lines(file)] == ["a"]


def test_an_older_result_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old")

    def break_off() -> None:
        with whole_file(file) as out:
            out.write(b"half")
            raise RequestError("broken")

    with pytest.raises(RequestError):
        break_off()
    assert file.read_text() == "old"
    with whole_file(file) as out:
        out.write(b"new")
    assert file.read_text() == "new"
