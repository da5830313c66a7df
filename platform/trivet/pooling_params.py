"""How one text becomes one vector: shared by the API, the wire and `LLM.embed`."""

from __future__ import annotations

import msgspec

from trivet.errors import RequestError

POOLINGS = ("last", "mean")
DEFAULT_POOLING = "last"  # of models that read from left to right: only it has seen the whole text


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Field names are vLLM's, where it has them."""

    pooling: str | None = None  # "last", "mean"; None: what the model's files ask for, else "last"
    normalize: bool = True  # to length 1, so that a dot product is the cosine
    dimensions: int | None = None  # the first so many, for models trained that way (Matryoshka)

    def check(self, hidden_size: int) -> None:
        """Raises: RequestError naming the field, its value and the values that would do."""
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise RequestError(
                f"pooling is {self.pooling!r}; it must be one of {', '.join(POOLINGS)}", param="pooling"
            )
        dimensions = self.dimensions
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= hidden_size):
            raise RequestError(
                f"dimensions is {dimensions!r}; it must be between 1 and {hidden_size}, the model's own",
                param="dimensions",
            )
