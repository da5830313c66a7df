"""What may be asked of a vector."""

from __future__ import annotations

import pytest

from trivet.errors import RequestError
from trivet.pooling_params import PoolingParams


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (PoolingParams(pooling="cls"), r"pooling is 'cls'; it must be one of last, mean"),
        (PoolingParams(dimensions=0), r"dimensions is 0; it must be between 1 and 64"),
        (PoolingParams(dimensions="8"), r"dimensions is '8'; it must be between"),  # type: ignore[arg-type]
        (PoolingParams(dimensions=65), r"dimensions is 65; .* the model's own"),
    ],
)
def test_a_wrong_wish_is_named_with_what_would_do(params: PoolingParams, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        params.check(64)


@pytest.mark.parametrize("dimensions", [None, 1, 64])
def test_what_the_model_has_may_be_asked_for(dimensions: int | None) -> None:
    PoolingParams(pooling="mean", dimensions=dimensions).check(64)
