"""Rotary frequencies of every type against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.rope_config import read_rope
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import Rope

DIM = 64
FACTORS = np.random.default_rng(1).uniform(1, 30, DIM // 2).tolist()
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "longrope": {
        "short_factor": FACTORS,
        "long_factor": [2 * factor for factor in FACTORS],
        "original_max_position_embeddings": 512,
    },
}
YARN_VARIANTS: dict[str, dict[str, Any]] = {
    "its own attention factor": {"attention_factor": 1.3},
    "mscale": {"mscale": 1.0, "mscale_all_dim": 0.8},
    "mscale alone": {"mscale": 0.7},
    "other betas": {"beta_fast": 16.0, "beta_slow": 2.0},
    "not truncated": {"truncate": False},
    "a range of one dimension": {"beta_fast": 1.0, "beta_slow": 1.0},
}


def config(rope_type: str, theta: float, **more: Any) -> LlamaConfig:
    parameters = {"rope_type": rope_type, "rope_theta": theta, **ROPES[rope_type], **more}
    return LlamaConfig(
        hidden_size=2 * DIM, num_attention_heads=2, max_position_embeddings=2048, rope_parameters=parameters
    )


def theirs(hf: LlamaConfig, length: int) -> tuple[torch.Tensor, float]:
    kind = hf.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(hf)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"), seq_len=length)
    return frequencies, factor


def read(hf: LlamaConfig) -> Rope:
    return read_rope(ConfigValues(hf.to_dict(), "config.json"), DIM, 2048)[0]


def assert_equal(hf: LlamaConfig, length: int) -> None:
    expected, expected_factor = theirs(hf, length)
    frequencies, factor = inverse_frequencies(read(hf), length)
    assert frequencies.dtype == np.float32
    assert frequencies.shape == (DIM // 2,)
    # Powers in float32 may differ in the last place (6e-8); llama3 subtracts such numbers.
    np.testing.assert_allclose(frequencies, expected.numpy(), rtol=5e-7)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize("length", [300, 2048, 6000])
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("rope_type", ROPES)
def test_frequencies_equal_transformers(rope_type: str, theta: float, length: int) -> None:
    assert_equal(config(rope_type, theta), length)


@pytest.mark.parametrize(("original", "beta_fast"), [(64, 32.0), (1_000_000, 100_000.0)])
def test_yarn_range_is_kept_inside_the_head(original: int, beta_fast: float) -> None:
    # With a base of 100 the range would begin at dimension -8, or end at 84 of 64.
    hf = config("yarn", 100.0, original_max_position_embeddings=original, beta_fast=beta_fast)
    assert_equal(hf, 2048)


@pytest.mark.parametrize("variant", YARN_VARIANTS)
def test_yarn_variants_equal_transformers(variant: str) -> None:
    assert_equal(config("yarn", 10_000.0, **YARN_VARIANTS[variant]), 2048)


@pytest.mark.parametrize(
    "settings", [{"attention_factor": 1.7}, {"factor": 4.0}, {"factor": 0.5}, {"factor": None}]
)
def test_longrope_attention_factor_equals_transformers(settings: dict[str, float | None]) -> None:
    assert_equal(config("longrope", 10_000.0, **settings), 2048)


def test_every_type_of_transformers_is_covered_but_proportional() -> None:
    # proportional rotates part of a head with the whole head's frequencies: Gemma 4, which has no spec.
    assert set(ROPE_INIT_FUNCTIONS) - set(ROPES) == {"proportional"}


def test_dynamic_base_is_fixed_by_the_length_and_plain_within_the_trained_one() -> None:
    rope = Rope(DIM, scaling="dynamic", factor=2.0, original_max_len=2048)
    plain, _ = inverse_frequencies(Rope(DIM), 0)
    np.testing.assert_array_equal(inverse_frequencies(rope, 100)[0], plain)
    assert inverse_frequencies(rope, 4096)[0][-1] < plain[-1]


def test_two_dimensions_have_no_base_to_stretch() -> None:
    rope = Rope(2, scaling="dynamic", factor=2.0, original_max_len=16)
    assert inverse_frequencies(rope, 64)[0].tolist() == [1.0]


def test_unknown_scaling_is_an_error() -> None:
    with pytest.raises(ValueError, match="rope scaling 'spiral' is unknown"):
        inverse_frequencies(Rope(DIM, scaling="spiral"), 16)
