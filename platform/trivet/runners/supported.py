"""Which models the generic decoder computes on an accelerator; no torch."""

from __future__ import annotations

from trivet.errors import Unsupported
from trivet.models.decoder import check_dense
from trivet.models.expected_tensors import check_tensors
from trivet.models.spec import ModelSpec
from trivet.runners.slices import check_divisible
from trivet.weights.index import WeightIndex


def check_model(spec: ModelSpec, weights: WeightIndex, num_ranks: int, backend: str) -> None:
    """Raises: Unsupported; WeightsError where the files do not match the spec."""
    if spec.shapes_only:
        raise Unsupported(
            f"{spec.architecture} runs through transformers' own code, which the {backend} backend does not "
            "offer; use backend cpu"
        )
    check_dense(spec)
    check_tensors(spec, weights)
    check_divisible(spec, num_ranks)


def check_block_size(block_size: int, sizes: tuple[int, ...], backend: str) -> None:
    """Raises: Unsupported."""
    if block_size not in sizes:
        raise Unsupported(
            f"block_size {block_size} is not supported on {backend}; use {', '.join(map(str, sizes))}"
        )
