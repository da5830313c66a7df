"""What a request may ask of the sampler."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from trivet.errors import RequestError
from trivet.sampling_params import (
    MAX_ALL_STOP_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    SamplingParams,
)


@pytest.mark.parametrize("stop", [(), ("a" * MAX_STOP_CHARACTERS,) * MAX_STOP_STRINGS])
def test_stop_strings_up_to_the_limits_are_taken(stop: tuple[str, ...]) -> None:
    SamplingParams(stop=stop).check()


@pytest.mark.parametrize(
    "stop",
    [
        ("",),
        ("a" * (MAX_STOP_CHARACTERS + 1),),
        ("a",) * (MAX_STOP_STRINGS + 1),
        tuple(c * (MAX_ALL_STOP_CHARACTERS // 8 + 1) for c in "abcdefgh"),
    ],
)
def test_stop_strings_that_would_hold_up_the_engine_are_refused(stop: tuple[str, ...]) -> None:
    # 16 MiB of them, a request's body, took the engine's loop 10 s and several GB.
    with pytest.raises(RequestError, match="stop is") as caught:
        SamplingParams(stop=stop).check()
    assert caught.value.param == "stop"
    assert len(str(caught.value)) < 400, "the message does not repeat a huge value"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", float("inf")),
        ("seed", 2**63),
        ("max_tokens", -1),
        ("min_tokens", 17),  # more than max_tokens
        ("logprobs", 21),
        ("stop_token_ids", (-1,)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value}).check()  # type: ignore[arg-type]
    assert caught.value.param == field


def test_tokens_that_may_not_come_yet_are_not_all_that_is_allowed() -> None:
    params = SamplingParams(allowed_token_ids=(1, 2), stop_token_ids=(2, 1, 3), min_tokens=1)
    with pytest.raises(RequestError, match="min_tokens"):
        params.check()
    SamplingParams(allowed_token_ids=(1, 2), stop_token_ids=(2,), min_tokens=1).check()
    SamplingParams(stop_token_ids=(2,), min_tokens=1).check()


def test_the_seed_minus_one_is_none() -> None:
    assert SamplingParams(seed=-1) == SamplingParams()
    assert msgspec.json.decode('{"seed": -1}', type=SamplingParams).seed is None


@pytest.mark.parametrize("seed", [0, 7, -2, 2**63 - 2, -(2**63) + 1])
def test_completions_of_one_prompt_have_seeds_of_their_own(seed: int) -> None:
    seeds = [SamplingParams(n=4, seed=seed).child(index).seed for index in range(4)]
    assert seeds[0] == seed
    assert None not in seeds
    assert len(set(seeds)) == 4
    for one in seeds:
        SamplingParams(seed=one).check()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "hot", r"temperature is 'hot'; it must be of type float"),
        ("n", "2", r"n is '2'; it must be of type int"),
        ("seed", 1.5, r"seed is 1.5; it must be of type int \| None"),
        ("seed", np.int64(5), r"it must be of type int \| None"),
        ("stop", 5, r"stop is 5; it must be of type list"),
        ("stop", ["a", 5], r"stop is \['a', 5\]; stop\[1\] must be of type str"),
        ("stop_token_ids", [1.5], r"stop_token_ids\[0\] must be of type int"),
        ("logit_bias", {"5": 1.0}, r"logit_bias is \{'5': 1.0\}; its keys must be of type int"),
        ("logit_bias", {5: "a"}, r"logit_bias\[...\] must be of type float"),
        ("ignore_eos", 1, r"ignore_eos is 1; it must be of type bool"),
        ("structured_outputs", "json", r"structured_outputs is 'json'; it must be of type dict \| None"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: object, message: str) -> None:
    """As offline callers may write them; over HTTP they are decoded."""
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(**{field: value}).check_types()  # type: ignore[arg-type]
    assert caught.value.param == field


def test_numbers_that_lose_nothing_are_taken() -> None:
    SamplingParams(temperature=1, top_p=np.float64(0.5)).check_types()
