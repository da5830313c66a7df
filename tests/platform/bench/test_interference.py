"""Streams that decode while prompts arrive, on the null backend."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.bench.interference import Disturbance, interfere
from trivet.demo_model import find_demo_model
from trivet.errors import GenerationError
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


def _interfere(llm: LLM, load: Disturbance) -> dict[str, float]:
    done: list[None] = []
    figures = interfere(llm.engine, load, SAMPLING, np.random.default_rng(1), lambda: done.append(None))
    assert len(done) == load.num_prompts
    return figures


def test_streams_are_measured_with_and_without_prompts_and_leave_nothing() -> None:
    with LLM(find_demo_model(), backend="null", max_model_len=1024, max_num_batched_tokens=64) as llm:
        figures = _interfere(llm, Disturbance(4, 3, 200))
        core = llm.engine.core
        steps = core.load().num_steps
        assert not core.scheduler.running
        assert not core.scheduler.waiting
    assert set(figures) == {
        *(f"{name}_ms_p{p}" for name in ("itl", "quiet_itl", "ttft") for p in (50, 90, 99)),
        "prefill_tokens_per_s",
    }
    assert figures["ttft_ms_p50"] > figures["itl_ms_p50"]  # a prompt of 200 takes four steps of 60
    assert figures["prefill_tokens_per_s"] == pytest.approx(200 / figures["ttft_ms_p50"] * 1e3)
    assert steps >= 32 + 3 * 4


def test_streams_that_end_too_soon_are_an_error_and_not_a_better_figure() -> None:
    with LLM(find_demo_model(), backend="null", max_model_len=256, max_num_batched_tokens=16) as llm:
        with pytest.raises(GenerationError, match="the streams ended before 40 prompts had come"):
            interfere(llm.engine, Disturbance(2, 40, 200), SAMPLING, np.random.default_rng(1))
        assert not llm.engine.core.scheduler.running
