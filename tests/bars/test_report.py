"""The table, the JSON and the exit status."""

from __future__ import annotations

import json

from trivet_bars.bars import Bar, Goal, Outcome, Transport
from trivet_bars.ladder import MEASURES
from trivet_bars.limits import Limits
from trivet_bars.report import Comparison, Taken, as_json, table
from trivet_bars.rounds import Sample

BAR = Bar(Transport.HTTP, MEASURES["at_once_32"], 1.9)


def comparison(ratio: float | None, waste: float | None = 2.0) -> Comparison:
    return Comparison(
        {"cpu": "Example CPU"},
        2,
        3,
        missing=["vllm-bf16"],
        engines=[Taken("trivet", Transport.HTTP, "trivet serve", {"trivet": "0.1"}, 300_000_000)],
        samples={Transport.HTTP: [Sample("trivet", "at_once_32", 0, 0.0, {"output_tokens_per_s": 800.0})]},
        outcomes=[Outcome(BAR, 800.0, 400.0, "peer", ratio)],
        goals=[Goal("KV waste", waste, 4.0, "%")],
        limits=Limits(25.0, 800.0, 400.0),
    )


def test_exit_status_tells_met_from_not_met_from_not_measured() -> None:
    assert comparison(2.0).exit_code == 0
    assert comparison(1.8).exit_code == 1
    assert comparison(2.0, waste=5.0).exit_code == 1
    assert comparison(None).exit_code == 3
    assert comparison(None, waste=5.0).exit_code == 1


def test_a_row_tells_ratio_bar_and_verdict() -> None:
    (row,) = [line for line in table(comparison(1.8)).splitlines() if "HTTP: 32 at once" in line]
    assert row.split()[5:] == ["800", "400", "peer", "1.8", "1.90", "not", "met"]


def test_versions_commands_and_missing_peers_are_told() -> None:
    text = table(comparison(2.0))
    assert "trivet, HTTP: trivet 0.1\n    trivet serve" in text
    assert "without: vllm-bf16" in text
    assert "25.0 GB/s read" in text


def test_noise_is_told() -> None:
    result = comparison(2.0)
    result.samples[Transport.HTTP].append(
        Sample("trivet", "at_once_32", 1, 0.4, {"output_tokens_per_s": 1.0})
    )
    assert "40% at most, above 10% before 1 of 2" in table(result)


def test_json_has_every_sample() -> None:
    told = json.loads(json.dumps(as_json(comparison(1.8))))
    assert told["bars"][0]["verdict"] == "not met"
    assert told["samples"]["HTTP"][0]["figures"] == {"output_tokens_per_s": 800.0}
