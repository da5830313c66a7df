"""The checks that every header's tensors must pass."""

from __future__ import annotations

import pytest

from trivet.errors import WeightsError
from trivet.weights.raw_tensor import RawTensor, check_layout


def tensor(name: str, offset: int, size_bytes: int) -> RawTensor:
    return RawTensor(name, (size_bytes,), "i8", "model.gguf", offset, size_bytes)


def check(*tensors: RawTensor) -> None:
    check_layout(tensors, "model.gguf", file_bytes=100, data_start=20)


def test_tensors_side_by_side_pass_in_any_order() -> None:
    check(tensor("b", 60, 40), tensor("a", 20, 40))


def test_tensor_past_the_end_is_named_with_both_numbers() -> None:
    with pytest.raises(
        WeightsError, match=r"model.gguf: tensor 'b' ends at byte 101 and the file has 100; .*trunc"
    ):
        check(tensor("a", 20, 40), tensor("b", 60, 41))


def test_tensor_inside_the_header_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"tensor 'a' starts at byte 19, inside the header"):
        check(tensor("a", 19, 1))


def test_overlapping_tensors_are_named() -> None:
    with pytest.raises(WeightsError, match=r"tensors 'a' and 'b' overlap at byte 59"):
        check(tensor("a", 20, 40), tensor("b", 59, 10))


def test_overlap_across_an_empty_tensor_is_found() -> None:
    with pytest.raises(WeightsError, match="overlap"):
        check(tensor("a", 20, 40), tensor("empty", 30, 0), tensor("b", 59, 10))
