"""Where each tensor of a model stands in its files: read from headers alone, no tensor data.

It is enough for a backend's `check` and `plan`, which is why those need no torch. Canonical names
(i is the layer; a bias has `.bias` in place of `.weight`):

    embed.weight                         [vocab_size, hidden_size]
    layers.{i}.attention_norm.weight     [hidden_size]
    layers.{i}.q.weight                  [num_heads * head_dim, hidden_size]
    layers.{i}.k.weight, .v.weight       [num_kv_heads * head_dim, hidden_size]
    layers.{i}.q_norm.weight, .k_norm    [head_dim]
    layers.{i}.o.weight                  [hidden_size, num_heads * head_dim]
    layers.{i}.mlp_norm.weight           [hidden_size]; absent in the order "parallel"
    layers.{i}.attention_post_norm.weight, .mlp_post_norm    [hidden_size]; in the order "sandwich" only
    layers.{i}.gate.weight, .up.weight   [intermediate_size, hidden_size]
    layers.{i}.down.weight               [hidden_size, intermediate_size]
    norm.weight                          [hidden_size]
    head.weight                          [vocab_size, hidden_size]; absent where embeddings are tied

Of an adapter (LoRA), for each matrix that it adapts:

    layers.{i}.q.lora_a                  [rank, hidden_size], and so on: columns of the matrix
    layers.{i}.q.lora_b                  [num_heads * head_dim, rank]: its rows; with a `scale`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trivet.errors import WeightsError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor under its canonical name.

    `unpermute_heads` > 0: the rows stand in GGUF's llama order, in which the two halves of each of
    this many heads are interleaved; the reader puts the rows back ([heads, head_dim / 2, 2] to
    [heads, 2, head_dim / 2]). It is a permutation of rows, so quantised rows survive it. What is read as
    numbers is multiplied by `scale`, which an adapter's second matrix has.
    """

    name: str
    shape: tuple[int, ...]
    format: str  # "f32" | "f16" | "bf16" | "f64" or a GGUF type in lower case: "q8_0", "q4_1", "q4_k"
    file: str
    offset: int  # bytes from the start of the file
    size_bytes: int
    unpermute_heads: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class WeightIndex:
    """All tensors of one model."""

    tensors: tuple[TensorInfo, ...]

    @cached_property
    def by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def __getitem__(self, name: str) -> TensorInfo:
        """Raises: WeightsError naming the tensor that is missing."""
        try:
            return self.by_name[name]
        except KeyError:
            files = sorted({tensor.file for tensor in self.tensors})
            raise WeightsError(
                f"tensor {name!r} is in none of the model's {len(files)} weight files "
                f"({', '.join(files[:3])}{', ...' if len(files) > 3 else ''}); "
                "the download may be incomplete: fetch the missing file again"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    @cached_property
    def size_bytes(self) -> int:
        """Of all tensors; loaders ask for it after each one."""
        return sum(tensor.size_bytes for tensor in self.tensors)
