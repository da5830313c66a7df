"""The decoder's operations (`trivet.models.ops`) on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.models.ops import Delta
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import Attention, Norm, Rope
from trivet.models.torch_ops import TorchOps, side_by_side
from trivet.runners.sharded_weights import Linear, Packer
from trivet_cuda.op_table import OpTable
from trivet_cuda.paged_kv import PagedKV
from trivet_cuda.step_view import StepView
from trivet_cuda.tiles import decode_splits, extend_tiles


class CudaOps(TorchOps):
    """`packer` is set before weights are loaded, `cache` once the KV cache has been allocated.

    As in the reference the residual stream is float32, and what is normed has the model's dtype.
    """

    def __init__(
        self, dtype: str, max_model_len: int, table: OpTable, device: torch.device, arch: int, num_sms: int
    ) -> None:
        super().__init__(dtype, max_model_len)
        self.table = table
        self.packer: Packer | None = None
        self.cache: PagedKV | None = None
        self._device, self._arch, self._num_sms = device, arch, num_sms

    # ---- weights ---------------------------------------------------------------------------------

    def pack(self, name: str, parts: Sequence[Any], shard: str, bias: Tensor | None = None) -> Any:
        """As `ops.Ops.pack`; parts are tensors or `stored_matrix.StoredMatrix`."""
        assert self.packer is not None  # the runner sets it before it loads
        return self.packer.pack(name, parts, shard, bias)

    def embed(self, token_ids: Tensor, w: Linear) -> Tensor:
        """As `ops.Ops.embed`, in float32."""
        return w.look_up(token_ids).float()

    def linear(self, x: Tensor, w: Linear, delta: Delta | None = None) -> Tensor:
        """As `ops.Ops.linear`."""
        return w.multiply(x, delta)

    # ---- norm, rope, activation ------------------------------------------------------------------

    def norm(self, x: Tensor, w: Any, spec: Norm, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.norm`; the decoder has folded `1 + w` into the weight."""
        if spec.kind == "layer":
            total = x if residual is None else x + residual
            normed = F.layer_norm(total.float(), (x.shape[-1],), w.vector, w.bias, spec.eps)
            return normed.to(self.dtype), total
        if residual is not None:
            normed, total = self.table.add_rms_norm(residual, x, w.vector, spec.eps, self.dtype)
        else:
            rows = x.reshape(-1, x.shape[-1])
            normed, total = self.table.rms_norm(rows, w.vector, spec.eps, self.dtype).view(x.shape), x
        return (normed if w.bias is None else (normed + w.bias).to(self.dtype)), total

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.rope`."""
        return self._turned(q, k, None, None, 0.0, positions, spec)

    def norm_rope(
        self, q: Tensor, k: Tensor, q_norm: Any, k_norm: Any, norm: Norm, positions: Tensor, spec: Rope
    ) -> tuple[Tensor, Tensor]:
        """As `ops.Ops.norm_rope`."""
        if norm.kind != "rms" or q_norm.bias is not None:
            return super().norm_rope(q, k, q_norm, k_norm, norm, positions, spec)
        return self._turned(q, k, q_norm.vector, k_norm.vector, norm.eps, positions, spec)

    def _turned(
        self,
        q: Tensor,
        k: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
        positions: Tensor,
        spec: Rope,
    ) -> tuple[Tensor, Tensor]:
        cos, sin = self._angles(positions, spec)
        both = side_by_side(q, k)
        heads = torch.cat((q, k), 1) if both is None else both
        turned = self.table.norm_rope(heads, q.shape[1], q_weight, k_weight, eps, cos, sin, spec.interleaved)
        return turned[:, : q.shape[1]], turned[:, q.shape[1] :]

    def _angles(self, positions: Tensor, spec: Rope) -> tuple[Tensor, Tensor]:
        """Cos and sin [T, dim / 2] in float32, kept for the other layers of the step."""
        if self._rotation is not None and self._rotation[0] is spec and self._rotation[1] is positions:
            return self._rotation[2], self._rotation[3]
        if spec not in self._frequencies:
            frequencies, factor = inverse_frequencies(spec, self._max_model_len)
            self._frequencies[spec] = (torch.from_numpy(frequencies).to(self._device), factor)
        inverse, factor = self._frequencies[spec]
        angles = positions.to(torch.float32)[:, None] * inverse
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self._rotation = (spec, positions, cos, sin)
        return cos, sin

    def forget_angles(self) -> None:
        """At the start of a step: positions in a graph's buffer change in place."""
        self._rotation = None

    def release(self) -> None:
        """Let go of everything on the device."""
        self.cache = self.packer = self._rotation = None
        self._frequencies = {}

    def activation(self, gate: Tensor, up: Tensor | None, kind: str) -> Tensor:
        """As `ops.Ops.activation`; gate and up as halves of one product take one kernel."""
        if kind == "silu" and up is not None and _are_halves(gate, up):
            size = gate.shape[-1]
            both = gate.as_strided((gate.shape[0], 2 * size), gate.stride(), gate.storage_offset())
            return self.table.swiglu(both)
        return super().activation(gate, up, kind)

    # ---- attention -------------------------------------------------------------------------------

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: Any) -> Tensor:
        """As `ops.Ops.attention`; `step` is a `StepView`. Decodes have a kernel of their own."""
        assert self.cache is not None  # the runner allocates it before the first step
        assert isinstance(step, StepView)
        kv, table = self.cache.layers[layer], self.table
        table.write_kv(k, v, *kv, step.kv_slots)
        settings = (spec.scale, spec.window or 0, spec.soft_cap or 0.0)
        num_decodes, decoded = step.num_decodes, None
        if num_decodes:
            splits = decode_splits(step.bucket, spec.num_kv_heads, self._max_model_len, self._num_sms)
            where = (q[:num_decodes], *kv, step.decode_table, step.decode_lens)
            decoded = table.decode_attention(*where, *settings, splits, self._arch)
        if decoded is not None and num_decodes == len(q):
            return decoded
        group = spec.num_heads // spec.num_kv_heads
        shape = extend_tiles(self._arch, spec.head_dim, group, q.dtype, kv.keys.dtype)
        tiles = step.chunk_tiles(shape.tile_tokens)
        lengths = (step.block_table, step.query_starts, step.seq_lens)
        out = table.extend_attention(q, *kv, *lengths, tiles, *settings, self._arch)
        if decoded is not None:
            out[:num_decodes] = decoded
        return out


def _are_halves(gate: Tensor, up: Tensor) -> bool:
    """Whether they stand beside each other in rows of one tensor."""
    size = gate.shape[-1]
    return (
        gate.stride() == up.stride()
        and gate.stride(-1) == 1
        and up.storage_offset() == gate.storage_offset() + size
        and gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
    )
