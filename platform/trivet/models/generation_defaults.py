"""Sampling defaults that a model's files bring: what a request of its own would be refused for, they are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trivet.errors import ModelFilesError, RequestError
from trivet.sampling_params import SamplingParams


def check_defaults(defaults: Mapping[str, float], source: object) -> None:
    """Else every plain request would be refused for a field that it does not have.

    Args: defaults: by the names of SamplingParams; source: where they stand.

    Raises: ModelFilesError.
    """
    try:
        msgspec.structs.replace(SamplingParams(), **defaults).check()
    except RequestError as error:
        raise ModelFilesError(f"{source}: {error.message}: correct the file") from error
