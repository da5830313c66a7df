"""Typed access to config values."""

from __future__ import annotations

import pytest

from trivet.errors import ModelFilesError
from trivet.models.architectures.config_values import ConfigValues


def values(value: object) -> ConfigValues:
    return ConfigValues({"x": value}, "config.json")


@pytest.mark.parametrize("value", ["8", True, 8.5, 0, -1, 1 << 50, [8], {}, float("nan"), float("inf")])
def test_what_is_no_whole_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(ModelFilesError, match=r"config.json: x is .*; it must be a whole number from 1 to"):
        values(value).integer("x")


def test_whole_number_written_as_a_fraction_counts() -> None:
    assert values(4096.0).integer("x") == 4096


def test_null_counts_as_absent() -> None:
    assert values(None).integer("x", 7) == 7
    with pytest.raises(ModelFilesError, match="x is missing"):
        values(None).integer("x")


@pytest.mark.parametrize("value", ["1", True, float("nan"), float("inf"), -0.1, [1], 10**400])
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    with pytest.raises(ModelFilesError, match=r"config.json: x is "):
        values(value).number("x")


@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_flag_is_true_or_false(value: object) -> None:
    with pytest.raises(ModelFilesError, match="it must be true or false"):
        values(value).flag("x")


def test_long_values_are_cut_in_the_message() -> None:
    with pytest.raises(ModelFilesError) as caught:
        values("9" * 5000).integer("x")
    assert len(str(caught.value)) < 300
