"""The operations of `ops.py` in plain torch: fallback and reference of every backend.

Arithmetic is in the tensors' dtype, as in transformers; norms, soft caps and anything else that sums
squares or exponentials is in float32. Attention lives in `torch_attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.models.ops import Delta
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import Attention, MoE, Norm, Rope
from trivet.models.torch_attention import AttentionCache, PagedStep

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_GELU = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """A weight as torch stores it, [out, in], or a vector, with its bias."""

    weight: Tensor
    bias: Tensor | None

    @property
    def size_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class TorchOps:
    """`ops.Ops` over torch tensors of one dtype on one device.

    `kv` is set once the cache has been allocated; weights are packed before that.
    """

    def __init__(self, dtype: str, max_model_len: int) -> None:
        self.dtype = DTYPES[dtype]
        self.kv: AttentionCache | None = None
        self._max_model_len = max_model_len
        self._frequencies: dict[Rope, tuple[Tensor, float]] = {}
        self._scalars: dict[float, Tensor] = {}
        self._rotation: tuple[Rope, Tensor, Tensor, Tensor] | None = None

    def pack(self, name: str, parts: Sequence[Tensor], shard: str, bias: Tensor | None = None) -> Any:
        """As `ops.Ops.pack`. Vectors (norm weights) stay float32: they are small and added to 1."""
        joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        if joined.dim() == 1:
            return PlainWeight(joined.float().clone(), None if bias is None else bias.float().clone())
        # `copy`: the source may be mapped from a file that is closed once all weights are loaded.
        weight = joined.to(self.dtype, copy=True)
        return PlainWeight(weight, None if bias is None else bias.to(self.dtype, copy=True))

    def embed(self, token_ids: Tensor, w: Any) -> Tensor:
        """As `ops.Ops.embed`, in float32: see `norm`."""
        return F.embedding(token_ids, w.weight).float()

    def linear(self, x: Tensor, w: Any, delta: Delta | None = None) -> Tensor:
        """As `ops.Ops.linear`."""
        y = F.linear(x, w.weight, w.bias)
        if delta is not None:
            delta.add_to(y, x)
        return y

    def norm(self, x: Tensor, w: Any, spec: Norm, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.norm`. RMS: Zhang and Sennrich 2019; layer: Ba et al. 2016.

        The residual stream is float32, what is normed has the model's dtype. A few values of the stream are
        hundreds of times the others; in bf16 each addition would round the others by the size of those.
        """
        if residual is not None:
            x = x + residual
        weight = w.weight + 1.0 if spec.add_one else w.weight
        if spec.kind == "layer":
            normed = F.layer_norm(x.float(), (x.shape[-1],), weight, w.bias, spec.eps)
            return normed.to(self.dtype), x
        # Six operations; F.rms_norm, with its casts, is nine: 10 us a row against 14 (2-core Zen 4).
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        mean_square = torch.addcmul(self._scalar(spec.eps), length, length, value=1 / x.shape[-1])
        normed = x * mean_square.rsqrt() * weight
        if w.bias is not None:
            normed = normed + w.bias
        return normed.to(self.dtype), x

    def _scalar(self, value: float) -> Tensor:
        if value not in self._scalars:
            self._scalars[value] = torch.tensor(value)
        return self._scalars[value]

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.rope`."""
        cos, sin = self._cos_sin(positions, spec)
        both = side_by_side(q, k)
        if both is None:
            return rotate(q, cos, sin, spec), rotate(k, cos, sin, spec)
        turned = rotate(both, cos, sin, spec)
        return turned[:, : q.shape[1]], turned[:, q.shape[1] :]

    def norm_rope(
        self, q: Tensor, k: Tensor, q_norm: Any, k_norm: Any, norm: Norm, positions: Tensor, spec: Rope
    ) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.norm_rope`."""
        return self.rope(self.norm(q, q_norm, norm)[0], self.norm(k, k_norm, norm)[0], positions, spec)

    def _cos_sin(self, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """[T, 1, dim] each in float32, laid out for `rotate`; kept for the other layers of the step."""
        if self._rotation is not None and self._rotation[0] is spec and self._rotation[1] is positions:
            return self._rotation[2], self._rotation[3]
        if spec not in self._frequencies:
            frequencies, factor = inverse_frequencies(spec, self._max_model_len)
            self._frequencies[spec] = (torch.from_numpy(frequencies).to(positions.device), factor)
        inverse, factor = self._frequencies[spec]
        # float32 angles: bf16 has 8 bits, too few for the position of a long context.
        angles = positions.to(torch.float32)[:, None] * inverse
        cos, sin = angles.cos() * factor, angles.sin() * factor
        if spec.interleaved:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        cos, sin = cos[:, None], sin[:, None]
        self._rotation = (spec, positions, cos, sin)
        return cos, sin

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: Any) -> Tensor:
        """As `ops.Ops.attention`; `step` is a `PagedStep`."""
        assert self.kv is not None  # the runner allocates it before the first step
        assert isinstance(step, PagedStep)
        return self.kv.attend(q, k, v, layer, spec, step)

    def activation(self, gate: Tensor, up: Tensor | None, kind: str) -> Tensor:
        """As `ops.Ops.activation`."""
        if kind == "silu":
            active = F.silu(gate)
        elif kind == "relu":
            active = F.relu(gate)
        else:
            active = F.gelu(gate, approximate=_GELU[kind])
        return active if up is None else active * up

    def moe(self, x: Tensor, router: Any, experts: Any, spec: MoE) -> Tensor:
        """Never reached: `decoder.check_dense` refuses such models before they are loaded."""
        raise AssertionError(f"mixture of {spec.num_experts} experts reached a dense runner")


def side_by_side(q: Tensor, k: Tensor) -> Tensor | None:
    """Join q and k to one tensor [T, num_heads + num_kv_heads, head_dim] where they lie side by side.

    They do when both are slices of one product; rotating them together saves three operations a layer.
    """
    heads = q.shape[1]
    offset = q.storage_offset() + heads * q.stride(1)
    is_beside = (
        q.stride() == k.stride()
        and k.storage_offset() == offset
        and q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    )
    if not is_beside:
        return None
    return q.as_strided((q.shape[0], heads + k.shape[1], q.shape[2]), q.stride(), q.storage_offset())


def rotate(x: Tensor, cos: Tensor, sin: Tensor, spec: Rope) -> Tensor:
    """Rotate the first `spec.dim` values of each head of x [T, heads, head_dim] (Su et al. 2021, eq. 34).

    cos and sin are float32 [T, 1, dim], and so is the rotation: in bf16 it made the logits of SmolLM2 15 %
    worse. sin carries the sign of the partner's share.
    """
    turned = x if spec.dim == x.shape[-1] else x[..., : spec.dim]
    if spec.interleaved:
        pairs = turned.reshape(*turned.shape[:-1], -1, 2)
        partner = pairs.flip(-1).flatten(-2)
    else:
        partner = torch.roll(turned, spec.dim // 2, -1)
    turned = torch.addcmul(turned * cos, partner, sin).to(x.dtype)
    return turned if turned.shape[-1] == x.shape[-1] else torch.cat((turned, x[..., spec.dim :]), -1)
