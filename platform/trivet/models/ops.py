"""The operations a backend gives to the generic decoder (`decoder.py`).

For backends that reuse the decoder; the engine never sees it. Every op has a plain torch twin in
`torch_ops.py` that is fallback and reference. `T` is the number of tokens of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trivet.models.spec import Attention, MoE, Norm, Rope

Tensor = Any  # torch.Tensor; this module must import without torch


class Delta(Protocol):
    """What adapters (LoRA) add to one product in one step."""

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """In place: y [T, out] += scale * B (A x), x [T, in]; rows of the base model stay as they are."""


class StepAdapters(Protocol):
    """Of one step: which token has which adapter."""

    def delta(self, name: str) -> Delta | None:
        """Of the matrix that was packed under this name; None where nothing is added to it."""


class Ops(Protocol):
    """Device operations over opaque packed weights `w`, which only `pack` makes.

    Collectives of a tensor-parallel runner live inside `linear`, `embed` and `moe`.
    """

    def pack(self, name: str, parts: Sequence[Tensor], shard: str, bias: Tensor | None = None) -> Any:
        """Concatenate `parts` by rows ([out_i, in] each) and lay them out for `linear` or `embed`.

        `shard`: "none" | "column" | "row" | "vocab".
        """

    def embed(self, token_ids: Tensor, w: Any) -> Tensor:
        """[T] -> [T, hidden_size]."""

    def linear(self, x: Tensor, w: Any, delta: Delta | None = None) -> Tensor:
        """[T, in] -> [T, out]; adds the packed bias if there is one, and what adapters add.

        `delta` is of this rank's rows and columns, as its product is before ranks are put together.
        """

    def norm(self, x: Tensor, w: Any, spec: Norm, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual) * w, x + residual); both [T, size]. Without residual: (norm(x) * w, x)."""

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """Rotate q [T, num_heads, head_dim] and k [T, num_kv_heads, head_dim]; positions [T]."""

    def norm_rope(
        self, q: Tensor, k: Tensor, q_norm: Any, k_norm: Any, norm: Norm, positions: Tensor, spec: Rope
    ) -> tuple[Tensor, Tensor]:
        """`norm` over each head of q and k, then `rope`; apart from it, so that one kernel can do both."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: Any) -> Tensor:
        """Write K and V of all tokens to the paged cache, then attend (contract rule 2).

        Returns [T, num_heads, head_dim]. `step` is the backend's own view of the batch.
        """

    def activation(self, gate: Tensor, up: Tensor | None, kind: str) -> Tensor:
        """act(gate) * up, or act(gate) where up is None."""

    def moe(self, x: Tensor, router: Any, experts: Any, spec: MoE) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
