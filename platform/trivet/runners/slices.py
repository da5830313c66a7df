"""Which part of a model is whose, where several ranks hold it together; no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trivet.errors import Unsupported
from trivet.models.spec import MLP, ModelSpec


@dataclass(frozen=True, slots=True)
class Span:
    """Rows or columns `start` to `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` processes that hold a model together."""

    index: int = 0
    count: int = 1

    def height(self, size: int) -> int:
        """Rows of each rank but the last, of `size`."""
        return -(-size // self.count)

    def part(self, size: int) -> Span:
        """This rank's share of `size` rows; the last may be shorter."""
        height = self.height(size)
        return Span(min(size, self.index * height), min(size, (self.index + 1) * height))


def check_divisible(spec: ModelSpec, num_ranks: int) -> None:
    """Every rank has as many heads and columns of a dense model. Raises: Unsupported naming what differs."""
    if num_ranks == 1:
        return
    for layer in spec.kinds:
        attention = layer.attention
        assert isinstance(layer.mlp, MLP)  # decoder.check_dense
        for what, count in (
            ("query heads", attention.num_heads),
            ("KV heads", attention.num_kv_heads),
            ("columns of the feed-forward block", layer.mlp.intermediate_size),
        ):
            if count % num_ranks:
                raise Unsupported(
                    f"tensor_parallel_size {num_ranks} does not divide the model's {count} {what}; "
                    "use a number that does"
                )


def local_spec(spec: ModelSpec, num_ranks: int) -> ModelSpec:
    """What one rank computes of a dense model: its heads, and its part of every feed-forward block."""
    kinds = []
    for layer in spec.kinds:
        assert isinstance(layer.mlp, MLP)  # decoder.check_dense
        heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
        attention = replace(layer.attention, num_heads=heads // num_ranks, num_kv_heads=kv_heads // num_ranks)
        mlp = replace(layer.mlp, intermediate_size=layer.mlp.intermediate_size // num_ranks)
        kinds.append(replace(layer, attention=attention, mlp=mlp))
    return replace(spec, kinds=tuple(kinds))
