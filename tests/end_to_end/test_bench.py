"""`trivet bench serve` against a real site."""

from __future__ import annotations

import json
from typing import Any

SHAPE = ("--prompt-tokens", "150", "--output-tokens", "6:9", "-n", "5", "--repeats", "1", "--json")


def test_a_real_server_is_measured_and_counts_its_own_tokens(site: Any) -> None:
    site.serve()
    site.launch("null", "null")
    limits = ("--rate", "50", "--goodput", "ttft:60000", "tpot:60000")
    done = site.run("bench", "serve", "null", *SHAPE, *limits)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens_counted_by"] == "usage"
    assert (report["failures"], report["num_failed"], report["num_short"]) == ({}, 0, 0)
    assert report["prompt_tokens"] == 5 * 150
    assert 5 * 6 <= report["output_tokens"] <= 5 * 9
    assert report["cached_prompt_tokens"] == 0
    assert report["goodput_requests_per_s"] == report["requests_per_s"]
    assert report["peak_rss_bytes"] > 1 << 20
    assert done.stderr == ""  # no progress bar where nobody looks at one

    talks = ("--workload", "multi-turn", "--turns", "2", "--endpoint", "chat")
    report = json.loads(site.run("bench", "serve", "null", *SHAPE, *talks).stdout)
    assert report["num_requests"] == 10
    assert report["failures"] == {}
    assert report["cached_prompt_tokens"] >= 5 * 128  # the second turn finds the first's whole blocks
