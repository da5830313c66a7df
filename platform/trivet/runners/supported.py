"""Which models the generic decoder computes on an accelerator; no torch."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.contract import RunnerConfig
from trivet.errors import Unsupported
from trivet.models.decoder import check_dense
from trivet.models.expected_tensors import check_tensors
from trivet.models.spec import ModelSpec
from trivet.runners.model_matrices import check_cuts
from trivet.runners.slices import check_divisible
from trivet.weights.index import WeightIndex


def check_adapters(spec: ModelSpec, config: RunnerConfig) -> None:
    """Raises: Unsupported where the model takes none."""
    if config.adapters.num_slots and spec.shapes_only:
        raise Unsupported(
            f"{spec.architecture} runs through transformers' own code, which takes no adapters (LoRA) here; "
            "merge them into its weights"
        )


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
    check_cuts(spec, weights, num_ranks)


def chosen_options(
    options: Mapping[str, str], known: Mapping[str, tuple[str, ...]], backend: str
) -> dict[str, str]:
    """Those of the backend itself; `num_threads` means nothing on a device.

    Args:
        known: values of each option.

    Raises: Unsupported naming the option and its values.
    """
    given = {key: value for key, value in options.items() if key != "num_threads"}
    for key, value in given.items():
        if key not in known:
            raise Unsupported(
                f"option {key!r} is unknown to the {backend} backend; it knows: {', '.join(known)}"
            )
        if value not in known[key]:
            raise Unsupported(f"option {key} is {value!r}; use {', '.join(known[key])}")
    return given


def check_block_size(block_size: int, sizes: tuple[int, ...], backend: str) -> None:
    """Raises: Unsupported."""
    if block_size not in sizes:
        raise Unsupported(
            f"block_size {block_size} is not supported on {backend}; use {', '.join(map(str, sizes))}"
        )
