"""The decoder's operations (`trivet.models.ops`) on an NPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.models.ops import Delta
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import Attention, Norm, Rope
from trivet.models.torch_attention import alibi_slopes
from trivet.models.torch_ops import TorchOps
from trivet.runners.sharded_weights import Linear, Packer
from trivet_ascend import npu_ops, npu_twins
from trivet_ascend.op_table import OpTable
from trivet_ascend.options import AscendOptions
from trivet_ascend.paged_kv import PagedKV, StepView


class AscendOps(TorchOps):
    """`packer` is set before weights are loaded, `cache` once the KV cache has been allocated.

    Unlike the reference, the residual stream has the model's dtype: the fused add and norm takes one dtype.
    """

    def __init__(
        self, dtype: str, max_model_len: int, table: OpTable, options: AscendOptions, device: torch.device
    ) -> None:
        super().__init__(dtype, max_model_len)
        self.table = table
        self.packer: Packer | None = None
        self.cache: PagedKV | None = None
        self._dtype_name, self._options, self._device = dtype, options, device
        self._mask: Tensor | None = None
        self._slopes: dict[int, Tensor] = {}

    # ---- weights ---------------------------------------------------------------------------------

    def pack(self, name: str, parts: Sequence[Any], shard: str, bias: Tensor | None = None) -> Any:
        """As `ops.Ops.pack`; parts are tensors or `stored_matrix.StoredMatrix`."""
        assert self.packer is not None  # the runner makes it after the self-test
        return self.packer.pack(name, parts, shard, bias)

    def embed(self, token_ids: Tensor, w: Linear) -> Tensor:
        """As `ops.Ops.embed`."""
        return w.look_up(token_ids)

    def linear(self, x: Tensor, w: Linear, delta: Delta | None = None) -> Tensor:
        """As `ops.Ops.linear`."""
        return w.multiply(x, delta)

    # ---- norm, rope, activation ------------------------------------------------------------------

    def norm(self, x: Tensor, w: Any, spec: Norm, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.norm`; the decoder has folded `1 + w` into the weight."""
        weight, bias = w.vector, w.bias
        if spec.kind == "layer":
            total = x if residual is None else x + residual
            return F.layer_norm(total, (x.shape[-1],), weight, bias, spec.eps), total
        if residual is None:
            normed, total = self.table.rms_norm(x.contiguous(), weight, spec.eps), x
        else:
            normed, total = self.table.add_rms_norm(x, residual, weight, spec.eps)
        return (normed if bias is None else normed + bias), total

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.rope`; the factor of a stretched context comes after, for cos and sin have a range."""
        cos, sin, factor = self._angles(positions, spec)

        def turned(x: Tensor) -> Tensor:
            part = self.table.rotate(x[..., : spec.dim].contiguous(), cos, sin, spec.interleaved)
            part = part if factor == 1.0 else part * factor
            return part if spec.dim == x.shape[-1] else torch.cat((part, x[..., spec.dim :]), -1)

        return turned(q), turned(k)

    def _angles(self, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor, float]:
        """Cos and sin [T, dim] in the model's dtype, kept for the other layers of the step."""
        if spec not in self._frequencies:
            frequencies, factor = inverse_frequencies(spec, self._max_model_len)
            self._frequencies[spec] = (torch.from_numpy(frequencies).to(self._device), factor)
        inverse, factor = self._frequencies[spec]
        if self._rotation is None or self._rotation[0] is not spec or self._rotation[1] is not positions:
            angles = positions.to(torch.float32)[:, None] * inverse
            angles = angles.repeat_interleave(2, -1) if spec.interleaved else torch.cat((angles, angles), -1)
            cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
            self._rotation = (spec, positions, cos, sin)
        return self._rotation[2], self._rotation[3], factor

    def forget_angles(self) -> None:
        """At the start of a step."""
        self._rotation = None

    def release(self) -> None:
        """Let go of everything on the device."""
        self.cache = self._mask = self._rotation = None
        self._slopes, self._frequencies = {}, {}

    def activation(self, gate: Tensor, up: Tensor | None, kind: str) -> Tensor:
        """As `ops.Ops.activation`; gate and up as halves of one product take one operation."""
        if kind == "silu" and up is not None and (joined := _halves_of(gate, up)) is not None:
            return self.table.swiglu(joined)
        return super().activation(gate, up, kind)

    # ---- attention -------------------------------------------------------------------------------

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: Any) -> Tensor:
        """As `ops.Ops.attention`; `step` is a `StepView`."""
        assert self.cache is not None  # the runner allocates it before the first step
        assert isinstance(step, StepView)
        keys, values = self.cache.layers[layer]
        self.table.write_kv(k.contiguous(), v.contiguous(), keys, values, step.slots)
        where = (q.contiguous(), keys, values, step.block_table, step.query_ends, step.seq_lens)
        if self._options.why_gathered(spec, self._dtype_name, self._max_model_len) is None:
            return self.table.fused_attention(*where, self._causal_mask(), spec.scale)
        slopes = self._alibi_slopes(spec.num_heads) if spec.alibi else None
        attend: Callable[..., Tensor] = npu_twins.fused_attention
        return attend(*where, None, spec.scale, spec.window, spec.soft_cap, slopes)

    def _causal_mask(self) -> Tensor:
        if self._mask is None:
            size = npu_ops.CAUSAL_MASK_SIZE
            ones = torch.ones(size, size, dtype=torch.int8).triu(1)
            self._mask = ones.to(self._device)
        return self._mask

    def _alibi_slopes(self, num_heads: int) -> Tensor:
        if num_heads not in self._slopes:
            self._slopes[num_heads] = torch.tensor(alibi_slopes(num_heads)).to(self._device)
        return self._slopes[num_heads]


def _halves_of(gate: Tensor, up: Tensor) -> Tensor | None:
    """The tensor [T, 2 n] of which gate and up are the halves; None where they are of two tensors."""
    size = gate.shape[-1]
    is_one = (
        gate.stride() == up.stride()
        and gate.stride(0) == 2 * size
        and up.storage_offset() == gate.storage_offset() + size
        and gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
    )
    if not is_one:
        return None
    return gate.as_strided((gate.shape[0], 2 * size), gate.stride(), gate.storage_offset())
