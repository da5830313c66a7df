"""The self-test's random model, tiny and interpreted: what it runs on a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor
from trivet_cuda_interpreted.device import InterpretedDevice

from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.self_test import OpOutcome
from trivet_cuda.device import Captured
from trivet_cuda.op_table import triton_table
from trivet_cuda.random_model import SPEC_1B, Runs, run_random_model

ATTENTION = Attention(4, 2, 32, 32**-0.5, Rope(32))
SPEC = ModelSpec("random tiny", 96, 90, 64, 256, (Layer(ATTENTION, MLP(96)),), (0, 0), Norm(), True)
RUNS = Runs(SPEC, num_seqs=(1, 3), num_tokens=20, num_steps=2, max_num_batched_tokens=8)


def outcomes(device: InterpretedDevice, runs: Runs = RUNS) -> list[OpOutcome]:
    return list(run_random_model(triton_table(), device, runs))


def test_every_bucket_is_replayed_and_compared_and_speeds_are_told() -> None:
    device = InterpretedDevice()
    found = outcomes(device)
    assert all(outcome.passed for outcome in found), found
    graphs, speeds = found[:3], found[3:]
    assert [outcome.case.split(",")[0] for outcome in graphs] == [
        f"a graph of {size} sequences against eager" for size in (1, 2, 3)
    ]
    assert device.num_captured == 3
    assert device.num_replayed == 3 + 2 * 3  # of the comparison, then three steps at both sizes
    assert all(outcome.measured["tokens_per_s"] > 0 for outcome in speeds)
    assert [outcome.case.partition("speed, ")[2] for outcome in speeds] == [
        f"{count} sequences of 20 tokens (random tiny)" for count in (1, 3)
    ]


class Stale(InterpretedDevice):
    """Its graphs give what they gave when they were captured."""

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        return replace(super().capture(run), replay=lambda: None)


def test_a_graph_that_reads_another_buffer_is_found() -> None:
    found = outcomes(Stale(), replace(RUNS, num_seqs=(2,)))
    assert [outcome.passed for outcome in found] == [False, False, True]


class Uncapturable(InterpretedDevice):
    def capture(self, run: Callable[[], Tensor]) -> Captured:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_bucket_that_cannot_be_captured_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    found = outcomes(Uncapturable(), replace(RUNS, num_seqs=(1,)))
    assert [outcome.failure for outcome in found] == ["it could not be captured; the log tells why", ""]
    assert "stream is capturing" in caplog.text


def test_what_does_not_fit_is_a_case_that_failed() -> None:
    (found,) = outcomes(InterpretedDevice(total_bytes=1000))
    assert "not run to its end: the KV cache takes" in found.failure


def test_the_model_for_a_card_has_a_billion_parameters_and_fits_8_gb() -> None:
    runs = Runs()
    assert SPEC_1B.num_layers == 16
    assert sum(part.size_bytes for part in runs.plan.parts) + 2.5e9 < 8.2e9
    assert 256 in runs.shape.buckets
