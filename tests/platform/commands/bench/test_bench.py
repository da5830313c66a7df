"""`trivet bench` on the null backend, and against a server."""

from __future__ import annotations

import json

import pytest

from trivet.demo_model import find_demo_model

MODEL = str(find_demo_model())
NULL = ("--backend", "null", "--set", "max_model_len=512", "--json")
SHAPE = ("--prompt-tokens", "16", "--output-tokens", "5", "--repeats", "2")


def test_latency_reports_the_single_stream(trivet) -> None:
    report = json.loads(trivet("bench", "latency", MODEL, *NULL, *SHAPE).out)
    assert report["benchmark"] == "latency"
    assert report["num_runs"] == 2
    for name in ("decode_tokens_per_s", "prefill_tokens_per_s", "ttft_ms_p50", "tpot_ms_p99", "itl_ms_p90"):
        assert report[name] > 0
        low, high = report["spread"][name]
        assert low <= report[name] <= high
    assert report["peak_rss_bytes"] > 1 << 20
    assert report["machine"]["cores"] >= 1
    assert report["config"]["settings"] == {"max_model_len": "512"}


def test_throughput_counts_the_tokens_of_all_prompts(trivet) -> None:
    report = json.loads(trivet("bench", "throughput", MODEL, *NULL, *SHAPE, "-n", "3").out)
    assert report["config"]["num_prompts"] == 3
    wall_s = 15 / report["output_tokens_per_s"]
    assert report["requests_per_s"] == pytest.approx(3 / wall_s, rel=0.5)  # medians of two runs
    assert "decode_tokens_per_s" not in report


def test_text_names_machine_and_figures(trivet) -> None:
    arguments = [value for value in NULL if value != "--json"]
    text = trivet("bench", "latency", MODEL, *arguments, *SHAPE).out
    assert "median of 2 runs" in text
    assert "decode_tokens_per_s" in text


def test_startup_measures_a_new_process(trivet) -> None:
    report = json.loads(trivet("bench", "startup", MODEL, *NULL, "--repeats", "1").out)
    assert report["startup_s"] > report["load_s"] > 0
    assert report["peak_rss_bytes"] > 1 << 20


def test_startup_that_fails_gives_the_last_words_of_the_process(trivet) -> None:
    done = trivet("bench", "startup", "/no/such.gguf", "--repeats", "1")
    assert done.code == 1
    assert "exit code 1" in done.err
    assert "/no/such.gguf" in done.err


def test_serve_measures_streams(site, trivet) -> None:
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    site.requests.clear()
    report = json.loads(trivet("bench", "serve", *SHAPE, "-c", "2", "-n", "4", "--json").out)
    assert report["config"]["model"] == "smollm2"
    assert report["requests_per_s"] > 0
    assert {"ttft_ms_p50", "e2e_ms_p99", "output_tokens_per_s"} < report.keys()
    sent = [body for _, path, body in site.requests if path == "/v1/completions"]
    assert len(sent) == 12  # one run to warm up, two that count
    assert len({tuple(body["prompt"]) for body in sent}) == 12  # nothing can come from a prefix cache
    trivet("bench", "serve", *SHAPE, "-c", "2", "-n", "4", "--json")
    sent = [body for _, path, body in site.requests if path == "/v1/completions"]
    assert len({tuple(body["prompt"]) for body in sent}) == 24  # nor from the one of a bench before
    assert sent[0]["ignore_eos"] is True
    assert sent[0]["max_tokens"] == 5


def test_serve_refuses_answers_that_are_too_short(site, trivet) -> None:
    site.boot = ["ready"]
    site.answer = ["short"]
    trivet("launch", "smollm2", "--no-wait")
    done = trivet("bench", "serve", *SHAPE, "-c", "1", "-n", "1")
    assert (done.code, done.err) == (1, "trivet: a stream brought 1 tokens of 5\n")


def test_counts_below_one_are_usage_errors(trivet) -> None:
    assert trivet("bench", "latency", "--repeats", "0").code == 2
