"""`trivet bench` on the null backend, and against a server."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import termios
from importlib.util import find_spec

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


def test_answers_beyond_the_context_are_refused_before_anything_is_measured(trivet) -> None:
    fits = trivet("bench", "latency", MODEL, *NULL, "--repeats", "1", "--output-tokens", "384")
    assert fits.code == 0
    done = trivet("bench", "latency", MODEL, *NULL, "--repeats", "1", "--output-tokens", "5:385")
    assert done.code != 0
    assert "may take 513 tokens, prompt and answer, and the context is 512" in done.err


def test_text_names_machine_and_figures(trivet) -> None:
    arguments = [value for value in NULL if value != "--json"]
    text = trivet("bench", "latency", MODEL, *arguments, *SHAPE).out
    assert "median of 2 runs" in text
    assert "decode_tokens_per_s" in text


def test_startup_of_what_is_not_there_is_an_error(trivet) -> None:
    done = trivet("bench", "startup", "/no/such.gguf", "--repeats", "1")
    assert done.code == 1
    assert "/no/such.gguf" in done.err


def test_serve_measures_streams(site, trivet) -> None:
    site.boot = ["ready"]
    trivet("models", "add", MODEL, "--name", "smollm2")
    trivet("launch", "smollm2", "--no-wait")
    site.requests.clear()
    report = json.loads(trivet("bench", "serve", *SHAPE, "-c", "2", "-n", "4", "--json").out)
    assert report["config"]["model"] == "smollm2"
    assert report["config"]["quantization"] == "q4_1"
    assert (report["config"]["backend"], report["config"]["server_version"]) == ("cpu", "0.1.0")
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


def test_serve_says_what_makes_figures_doubtful(site, trivet) -> None:
    site.boot = ["ready"]
    site.answer = ["short"]
    trivet("launch", "smollm2", "--no-wait")
    done = trivet("bench", "serve", *SHAPE, "-c", "1", "-n", "3")
    assert done.code == 0
    assert "3 of 3 answers were shorter than asked" in done.out


def test_serve_names_what_the_server_said_where_nothing_was_answered(site, trivet) -> None:
    done = trivet("bench", "serve", "busy", *SHAPE, "-c", "1", "-n", "2")
    assert (done.code, done.err) == (1, "trivet: no request was answered: 2 x HTTP 429: the queue is full\n")


def test_more_connections_than_files_may_be_open_are_refused_at_once(site, trivet) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = trivet("bench", "serve", "smollm2", "-c", f"{limit}", "-n", f"{limit}")
    assert done.code == 2
    assert f"{limit:,} requests at once" in done.err
    assert "lower --concurrency or --num-prompts, or raise the limit (ulimit -n)" in done.err


def test_serve_sends_what_it_is_told(site, trivet) -> None:
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    site.requests.clear()
    options = ("--no-ignore-eos", "--temperature", "0.7", "--extra-body", '{"min_p": 0.1, "top_p": null}')
    where = ("--url", f"{site.url}/v1/", "-n", "1", "--endpoint", "chat", "--json")
    report = json.loads(trivet("bench", "serve", *SHAPE, *options, *where).out)
    assert report["config"]["extra_body"] == {"min_p": 0.1, "top_p": None}
    (body, *_) = [body for _, path, body in site.requests if path == "/v1/chat/completions"]
    assert {"ignore_eos", "top_p"}.isdisjoint(body)
    assert (body["min_p"], body["temperature"]) == (0.1, 0.7)


def test_serve_in_the_open_loop_with_goodput(site, trivet) -> None:
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    limits = ("--goodput", "ttft:60000", "e2e:60000")
    report = json.loads(trivet("bench", "serve", *SHAPE, *limits, "-n", "3", "--rate", "50", "--json").out)
    assert report["goodput_requests_per_s"] == pytest.approx(report["requests_per_s"])
    assert (report["config"]["rate"], report["config"]["goodput"]["ttft"]) == (50.0, 60000.0)
    assert "concurrency" not in report["config"]


def test_the_suite_is_the_same_in_process_and_over_http(site, trivet, tmp_path) -> None:
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    file = tmp_path / "suite.json"
    only = ("--only", "one_stream,at_once_4")
    served = trivet("bench", "serve", "--suite", "--repeats", "1", *only, "-o", str(file))
    assert "at_once_4" in served.out
    arguments = ("--backend", "null", "--suite", "--repeats", "1", "--json")
    offline = json.loads(trivet("bench", "throughput", MODEL, *arguments).out)
    over_http = json.loads(file.read_text())
    assert (offline["mode"], over_http["mode"]) == ("throughput", "serve")
    assert offline["benchmark"] == over_http["benchmark"] == "suite"
    assert list(over_http["scenarios"]) == ["one_stream", "at_once_4"]
    assert len(offline["scenarios"]) == 7
    assert offline["scenarios"]["prefill_1024"]["prefill_tokens_per_s"] > 0
    assert offline["scenarios"]["one_stream"]["decode_tokens_per_s"] > 0
    assert offline["scenarios"]["shared_prefix_cold"]["duration_s"] > 0
    assert offline["scenarios"]["at_once_32"]["output_tokens"] == 32 * 128
    warm = offline["scenarios"]["shared_prefix_warm"]
    assert warm["cached_prompt_tokens"] == 16 * 768


def test_a_scenario_that_does_not_exist_is_named(trivet) -> None:
    done = trivet("bench", "throughput", "--suite", "--only", "at_once_5")
    assert done.code == 2
    assert "at_once_5" in done.err
    assert "at_once_16" in done.err


def test_interference_has_a_point_for_each_budget(trivet) -> None:
    arguments = ("--interference", "--budgets", "32,64", "--arriving-tokens", "100", "--streams", "2")
    report = json.loads(trivet("bench", "latency", MODEL, *NULL, *arguments, "--repeats", "1").out)
    assert [point["max_num_batched_tokens"] for point in report["points"]] == [32, 64]
    for point in report["points"]:
        assert point["itl_ms_p99"] >= point["itl_ms_p50"] > 0
        assert point["prefill_tokens_per_s"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--prompt-tokens", "9:8"),
        ("--goodput", "itl:5"),
        ("--goodput", "ttft:-5"),
        ("--rate", "0"),
        ("--workload", "jsonl"),
        ("--workload", "nothing"),
        ("--extra-body", "[]"),
        ("--seed", "-1"),
        ("--api-key", "secret"),
        ("--timeout", "0"),
        ("--timeout", "nan"),
    ],
)
def test_wrong_options_are_usage_errors(site, trivet, arguments) -> None:
    assert trivet("bench", "serve", "smollm2", *arguments).code == 2


def test_counts_below_one_are_usage_errors(trivet) -> None:
    assert trivet("bench", "latency", "--repeats", "0").code == 2


@pytest.mark.parametrize(
    ("file", "said"),
    [("x.jpg", "neither .svg nor .png"), ("none/x.svg", "there is no folder")],
)
def test_a_chart_that_cannot_be_drawn_is_refused_before_the_runs(trivet, tmp_path, file, said) -> None:
    done = trivet("bench", "latency", "/no/such.gguf", "--plot", str(tmp_path / file))
    assert done.code == 2
    assert said in done.err


def test_a_report_that_cannot_be_written_is_refused_before_the_runs(trivet, tmp_path) -> None:
    done = trivet("bench", "latency", "/no/such.gguf", "-o", str(tmp_path / "none" / "x.json"))
    assert done.code == 2
    assert "there is no folder" in done.err


def test_a_budget_that_the_streams_take_whole_is_refused(trivet) -> None:
    done = trivet("bench", "latency", "--interference", "--budgets", "64,8", "--streams", "8")
    assert done.code == 2
    assert (
        "--budgets 8 leaves a step no token for a prompt beside 8 streams; take budgets above 8" in done.err
    )


@pytest.mark.skipif(find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_a_png_without_matplotlib_says_what_to_install(trivet, tmp_path) -> None:
    done = trivet("bench", "latency", "/no/such.gguf", "--plot", str(tmp_path / "x.png"))
    assert done.code == 2
    assert "pip install 'trivet[plot]'" in done.err


def test_a_chart_and_a_file_are_written_beside_the_table(trivet, tmp_path) -> None:
    chart, file = tmp_path / "x.svg", tmp_path / "x.json"
    arguments = [value for value in NULL if value != "--json"]
    done = trivet("bench", "latency", MODEL, *arguments, *SHAPE, "--plot", str(chart), "-o", str(file))
    assert chart.read_text().startswith("<svg")
    assert json.loads(file.read_text())["decode_tokens_per_s"] > 0
    assert "decode_tokens_per_s" in done.out
    assert "run 1" not in done.err  # no progress bar where nobody looks at one


def test_startup_tells_its_phases_and_what_is_resident(trivet) -> None:
    report = json.loads(trivet("bench", "startup", MODEL, *NULL, "--repeats", "1").out)
    phases = [report[name] for name in report if name.startswith("phase_")]
    assert sum(phases) == pytest.approx(report["startup_s"], abs=0.01)
    assert report["rss_after_first_token_bytes"] >= report["rss_after_interpreter_bytes"] > 1 << 20
    assert report["rss_anonymous_bytes"] + report["rss_file_bytes"] == report["rss_bytes"]
    assert report["peak_rss_bytes"] >= report["rss_bytes"]
    assert report["ready_s"] > 0
    assert report["startup_s"] > report["load_s"] > report["first_token_s"] > 0
    assert report["memory_kv_bytes"] > 0


def test_a_mixed_load_tells_the_waste_of_the_kv_cache(trivet) -> None:
    arguments = ("--prompt-tokens", "50:300", "--output-tokens", "1:20", "-n", "12", "--repeats", "1")
    report = json.loads(trivet("bench", "throughput", MODEL, *NULL, *arguments).out)
    assert 0 < report["kv_waste_percent"] < 100
    assert report["kv_sequences_fit"] > report["kv_sequences_fit_contiguous"]


def test_a_terminal_sees_a_progress_bar() -> None:
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 80))  # a new one has no columns, and a bar no room
    os.set_blocking(reader, False)  # a test that finds nothing to read fails and does not wait
    code = "import sys; from trivet.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bench", "throughput", MODEL, *NULL, *SHAPE, "-n", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, timeout=120, check=False)
    shown = os.read(reader, 1 << 16).decode()
    os.close(writer)
    os.close(reader)
    assert "random run 1" in shown
    assert json.loads(done.stdout)["num_runs"] == 2  # and the report stays clean
