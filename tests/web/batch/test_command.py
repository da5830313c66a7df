"""`trivet generate`: the whole command on the null backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from trivet.demo_model import find_demo_model
from trivet.text.tokenizer import load_tokenizer
from trivet_web.batch.journal import Journal

if TYPE_CHECKING:
    from conftest import Outcome

    Generate = Callable[..., Outcome]
    Source = Callable[..., Path]

NAME = Path(find_demo_model()).stem


def line(custom_id: object, url: str = "/v1/completions", **body: object) -> dict[str, Any]:
    """A line of OpenAI's form."""
    wanted = {"prompt": "Hi", "max_tokens": 3} if url == "/v1/completions" else {}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": NAME, **wanted, **body}}


# ---- simple lines ----


def test_simple_lines_are_answered_in_order(generate: Generate, source: Source) -> None:
    file = source(
        {"prompt": "one"},
        {"messages": [{"role": "user", "content": "two"}], "id": "b", "sampling": {"max_tokens": 2}},
    )
    done = generate(file, "--max-tokens", "4", "--seed", "5")
    assert done.code == 0
    assert f"2 lines, 0 failed, 6 tokens: {done.out}" in done.err
    first, second = done.lines
    assert (first["id"], first["completion_tokens"], first["prompt_tokens"]) == (0, 4, 1)
    assert (second["id"], second["completion_tokens"]) == ("b", 2)
    assert first["text"]
    assert first["finish_reason"] == "length"
    assert [path.name for path in done.out.parent.iterdir()] == ["in.jsonl", "out.jsonl"]
    assert "is there already" not in done.err
    again = generate(file, "--max-tokens", "4", "--seed", "5")
    assert f"{done.out} is there already: all lines are answered again, then it is replaced" in again.err
    assert again.lines == [first, second]


def test_options_are_the_sampling_of_lines_that_have_none(generate: Generate, source: Source) -> None:
    file = source(*({"prompt": "x", "id": n} for n in range(4)), {"prompt": "x", "sampling": {"seed": 6}})
    done = generate(file, "--max-tokens", "9", "--temperature", "5", "--seed", "5")
    texts = [one["text"] for one in done.lines]
    assert len(set(texts[:4])) == 1
    assert texts[4] != texts[0]


def test_a_line_that_cannot_run_has_its_error_in_its_place(generate: Generate, source: Source) -> None:
    """Found here, by the API and by the engine."""
    wrong = ("{", {"prompt": "a", "sampling": {"top_p": "high"}}, {"prompt": "word " * 600})
    done = generate(source({"prompt": "a"}, *wrong, {"prompt": "c"}))
    assert done.code == 1
    assert "5 lines, 3 failed" in done.err
    before, *failed, after = done.lines
    assert before["error"] is after["error"] is None
    assert [(one["id"], one["finish_reason"], one["text"]) for one in failed] == [
        (index, "error", "") for index in (1, 2, 3)
    ]
    for one, words in zip(
        failed, ("line 2: the line is no valid JSON", "top_p is wrong", "the context holds 512"), strict=True
    ):
        assert words in one["error"]


# ---- OpenAI's lines ----


def test_openai_s_lines_get_openai_s_results(generate: Generate, source: Source) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    file = source(
        line("c", "/v1/chat/completions", messages=messages, max_tokens=3),
        line("t", logprobs=2, n=2),
        line("e", "/v1/embeddings", input=["a", "b"], dimensions=4),
    )
    done = generate(file)
    assert done.code == 0
    assert [one["custom_id"] for one in done.lines] == ["c", "t", "e"]
    assert len({one["id"] for one in done.lines}) == 3
    for one in done.lines:
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"]
    chat, text, vectors = (one["response"]["body"] for one in done.lines)
    assert ChatCompletion.model_validate(chat).choices[0].message.content
    assert len(Completion.model_validate(text).choices) == 2
    assert [len(one.embedding) for one in CreateEmbeddingResponse.model_validate(vectors).data] == [4, 4]


def test_errors_over_http_are_responses_and_others_are_errors(generate: Generate, source: Source) -> None:
    file = source(
        line("good"),
        line("range", temperature=-1),
        line("model", model="gpt-9"),
        "no json",
        line("url", "/v1/images"),
        {**line("method"), "method": "GET"},
        line("stream", stream=True),
        line(5),
        {"method": "POST", "url": "/v1/completions", "body": {}},
    )
    done = generate(file)
    assert done.code == 1
    assert "9 lines, 8 failed, 3 tokens" in done.err
    good, out_of_range, model, no_json, url, method, stream, number, nameless = done.lines
    assert good["response"]["status_code"] == 200
    assert out_of_range["response"]["status_code"] == 400
    assert out_of_range["response"]["body"]["error"]["param"] == "temperature"
    assert out_of_range["error"] is None
    assert model["response"]["status_code"] == 404
    assert NAME in model["response"]["body"]["error"]["message"]
    assert no_json["error"] | {"message": ""} == {"code": "invalid_json_line", "message": "", "line": 4}
    assert (no_json["custom_id"], no_json["response"]) == (None, None)
    for failed, word in (
        (url, "url is '/v1/images'"),
        (method, "method is 'GET'"),
        (stream, "not streamed"),
        (number, "Expected `str`, got `int` - at `$.custom_id`"),
        (nameless, "missing required field `custom_id`"),
    ):
        assert failed["response"] is None
        assert failed["error"]["code"] == "invalid_request"
        assert word in failed["error"]["message"]
    assert (url["custom_id"], number["custom_id"]) == ("url", None)


def test_the_model_may_be_left_out_or_have_names_of_its_own(generate: Generate, source: Source) -> None:
    nameless = line("a")
    del nameless["body"]["model"]
    file = source(nameless, line("b", model="gpt-x"), line("c", model="gpt-y"), line("d"))
    done = generate(file, "--served-model-name", "gpt-x", "--served-model-name", "gpt-y")
    assert [one["response"]["status_code"] for one in done.lines] == [200, 200, 200, 404]
    assert [one["response"]["body"].get("model") for one in done.lines[:3]] == ["gpt-x", "gpt-x", "gpt-y"]


def test_options_reach_lines_that_leave_them_out(generate: Generate, source: Source) -> None:
    own = line("own")
    bare = line("bare")
    del bare["body"]["max_tokens"]
    done = generate(source(own, bare, line("e", "/v1/embeddings", input="x")), "--max-tokens", "7")
    counts = [one["response"]["body"]["usage"].get("completion_tokens") for one in done.lines]
    assert counts == [3, 7, None]


def test_two_lines_of_one_id_are_refused_before_the_model_is_loaded(
    generate: Generate, source: Source
) -> None:
    done = generate(source(line("a"), line("b"), line("a")), "--backend", "no-such")
    assert done.code == 1
    assert "lines 1 and 3 have the same id" in done.err
    assert not done.journal.exists()


def test_a_sequence_that_fails_is_told_and_the_others_go_on(generate: Generate, source: Source) -> None:
    token = load_tokenizer(find_demo_model()).encode("nan")[0]
    file = source(line("a"), line("sick", prompt=[token]), line("c"))
    done = generate(file, "--set", f"options.nan_token={token}")
    assert done.code == 1
    assert [one["response"]["status_code"] for one in done.lines] == [200, 500, 200]
    assert done.lines[1]["response"]["body"]["error"]["code"] == "generation_failed"


# ---- the command ----


def test_an_empty_file_gives_an_empty_one(generate: Generate, source: Source) -> None:
    done = generate(source())
    assert (done.code, done.lines) == (0, [])


def test_what_cannot_be_read_or_written_is_a_usage_error(
    generate: Generate, source: Source, tmp_path: Path
) -> None:
    missing = generate(tmp_path / "none")
    assert (missing.code, "No such file" in missing.err) == (2, True)
    done = generate(source(line("a")), "-o", str(tmp_path / "none/out"))
    assert (done.code, "No such file" in done.err) == (2, True)


def test_a_full_queue_of_the_engine_makes_no_line_fail(generate: Generate, source: Source) -> None:
    """The file is the queue; only what never fits is refused."""
    file = source(*(line(f"r{n}") for n in range(40)), line("never", n=9), line("fits", n=3))
    settings = ("max_num_seqs=4", "max_num_waiting=4", "options.step_ms=1")
    done = generate(file, *(part for setting in settings for part in ("--set", setting)))
    assert [one["response"]["status_code"] for one in done.lines] == [200] * 40 + [429, 200]


def test_the_input_is_not_written_over(generate: Generate, source: Source) -> None:
    file = source(line("a"))
    before = file.read_bytes()
    done = generate(file, "-o", str(file))
    assert (done.code, file.read_bytes()) == (2, before)
    assert "is the input; name another file" in done.err


def test_an_option_out_of_range_is_refused_at_once(generate: Generate, source: Source) -> None:
    done = generate(source(line("a")), "--temperature", "-1")
    assert done.code == 1
    assert "temperature is -1" in done.err
    assert not done.journal.exists()


def test_a_model_that_cannot_be_loaded_leaves_nothing(generate: Generate, source: Source) -> None:
    done = generate(source(line("a")), "--backend", "no-such")
    assert done.code == 1
    assert "'no-such' is not installed" in done.err
    assert not done.journal.exists()


# ---- taking up ----


def test_an_engine_that_is_lost_ends_the_run_and_the_same_command_goes_on(
    generate: Generate, source: Source
) -> None:
    """With other engine settings, if one likes."""
    file = source(*(line(f"r{n}", max_tokens=2 + n) for n in range(40)))
    broken = generate(file, "--set", "options.device_lost_step=60")
    assert broken.code == 1
    assert "instance offline ended" in broken.err
    assert "lines are kept in" in broken.err
    assert not broken.out.exists()
    kept = broken.journal.read_bytes()
    count = kept.count(b"\n") - 1
    assert 0 < count < 40
    done = generate(file)
    assert done.code == 0
    assert f"going on: {count} of 40 lines" in done.err
    assert [one["custom_id"] for one in done.lines] == [f"r{n}" for n in range(40)]
    usages = [one["response"]["body"]["usage"]["completion_tokens"] for one in done.lines]
    assert usages == [2 + n for n in range(40)]
    first = json.loads(kept.splitlines()[1].split(b" ", 3)[3])
    assert first in done.lines, "what was answered is not answered again"


def test_another_input_is_refused_by_what_differs(generate: Generate, source: Source) -> None:
    lines = [line(f"r{n}", max_tokens=2 + n) for n in range(40)]
    lost = ("--set", "options.device_lost_step=60")
    assert generate(source(*lines), *lost).code == 1
    changed = generate(source(*lines[:-1], line("new")))
    assert changed.code == 2
    assert "input is" in changed.err
    assert "give the same command to go on, or delete" in changed.err
    longer = generate(source(*lines, line("new")))
    assert longer.code == 2
    assert "bytes more at its end" in longer.err
    other = generate(source(*lines), "--temperature", "0.5")
    assert other.code == 2
    assert "--temperature is 0.5 and was not given" in other.err
    assert generate(source(*lines)).code == 0


def test_a_run_ended_between_its_last_line_and_its_result_needs_no_model(
    generate: Generate, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(journal: Journal) -> None:
        raise KeyboardInterrupt

    file = source(line("a"), line("b"))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "finish", interrupted)
        done = generate(file)
    assert done.code == 130
    assert f"stopped: 2 of 2 lines are kept in {done.journal}; the same command goes on" in done.err
    assert generate(file, "--backend", "no-such").code == 0
    assert [one["custom_id"] for one in done.lines] == ["a", "b"]


def test_a_run_that_answers_nothing_leaves_the_older_result(generate: Generate, source: Source) -> None:
    done = generate(source(line("a")))
    result = done.out.read_bytes()
    assert generate(source(line("b")), "--backend", "no-such").code == 1
    assert done.out.read_bytes() == result
    assert not done.journal.exists()
