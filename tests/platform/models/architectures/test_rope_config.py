"""Rotary settings: both forms of the keys, contexts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trivet.errors import ModelFilesError, UnsupportedArchitecture
from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.rope_config import read_rope
from trivet.models.spec import Rope

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(**config: Any) -> tuple[Rope, int]:
    return read_rope(ConfigValues(config, "config.json"), 8, 4096)


def test_both_forms_give_the_same_rope() -> None:
    old = read(
        rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3}, max_position_embeddings=131_072
    )
    new = read(
        rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, max_position_embeddings=131_072
    )
    assert old == new
    assert old == (
        Rope(8, 5e5, scaling="llama3", factor=8.0, original_max_len=8192, params=(1.0, 4.0)),
        131_072,
    )


def test_type_may_stand_under_its_old_name() -> None:
    assert read(rope_scaling={"type": "linear", "factor": 2.0})[0].scaling == "linear"


def test_su_is_longrope() -> None:
    settings = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    assert read(rope_scaling=settings)[0].scaling == "longrope"


@pytest.mark.parametrize("settings", [None, {}, {"rope_type": "default"}, {"type": "default", "factor": 9.0}])
def test_without_scaling_only_theta_counts(settings: dict[str, Any] | None) -> None:
    assert read(rope_scaling=settings, rope_theta=7e4) == (Rope(8, 7e4), 4096)


def test_theta_defaults_to_ten_thousand() -> None:
    assert read()[0].theta == 10_000.0


def test_theta_inside_the_parameters_goes_before_the_one_beside_them() -> None:
    assert read(rope_theta=1e4, rope_parameters={"rope_theta": 1e6})[0].theta == 1e6


def test_original_length_beside_the_settings_goes_before_the_one_inside() -> None:
    rope, _ = read(
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
        original_max_position_embeddings=200,
    )
    assert rope.original_max_len == 200


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16_384),
        ({"rope_type": "dynamic", "factor": 4.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}, 131_072),
        ({"rope_type": "yarn", "factor": 4.0}, 16_384),
        ({"rope_type": "llama3", **LLAMA3}, 4096),
    ],
)
def test_context_is_what_the_scaling_is_made_for(settings: dict[str, Any], context: int) -> None:
    assert read(rope_scaling=settings)[1] == context


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "mrope", "mrope_section": [1]},
        {"rope_type": "proportional"},
        {"rope_type": 5},
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}},
    ],
)
def test_what_a_spec_cannot_state_is_left_to_transformers(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="only transformers can run this model"):
        read(rope_parameters=settings)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_theta": 0}, "rope_theta is 0; it must be a number from 1e-06 to 1e.12"),
        ({"rope_theta": "big"}, "rope_theta is 'big'; it must be a number"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing; it must be a number"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0; it must be a number from 1e-06"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 0.5}},
            "factor is 0.5; it must be a number from 1 to",
        ),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, "low_freq_factor is missing"),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1}},
            "high_freq_factor is 1; it must be greater than low_freq_factor 1.0",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": float("nan")}}, "factor is nan"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e300}}, "factor is 1e.300"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1e-320}}, "beta_fast is 1e-320"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1}, "yarn needs more than 1"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "short_factor is .1.0.; .* list of 4",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 0], "long_factor": [1] * 4}},
            "short_factor is .* greater than 0",
        ),
        ({"max_position_embeddings": 1 << 60}, "max_position_embeddings is .* a whole number from 1"),
    ],
)
def test_damaged_settings_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        read(**config)
