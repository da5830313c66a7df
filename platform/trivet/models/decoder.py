"""One decoder for every dense `ModelSpec`, written over a backend's `Ops`.

It holds the order of operations and nothing else: no tensor library is imported here, so CUDA, Ascend
and the CPU share it and an architecture is data. A backend may compile a spec into something faster;
this stays its reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from trivet.errors import Unsupported
from trivet.models.ops import Delta, Ops, StepAdapters, Tensor
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, MoE, Norm

ORDERS = ("pre", "sandwich", "parallel")


class TensorSource(Protocol):
    """Where the decoder takes its weights from, by canonical name (`weights/index.py`)."""

    def __contains__(self, name: object) -> bool: ...

    def tensor(self, name: str) -> Tensor:
        """The whole tensor in the shape of the index. Raises: WeightsError."""


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """Packed weights of one layer; None where its spec has none."""

    attention_norm: Any
    qkv: Any  # q, k and v by rows: one product instead of three
    q_norm: Any
    k_norm: Any
    o: Any
    attention_post_norm: Any
    mlp_norm: Any
    gate_up: Any  # gate and up by rows, or up alone where the block is not gated
    down: Any
    mlp_post_norm: Any


def check_dense(spec: ModelSpec) -> None:
    """Raises: Unsupported naming the part of `spec` that this decoder does not compute."""
    for layer in spec.kinds:
        attention = layer.attention
        if isinstance(layer.mlp, MoE):
            raise Unsupported(
                f"{spec.architecture} has mixture-of-experts layers with {layer.mlp.num_experts} experts; "
                "this backend runs dense models only: choose a dense one"
            )
        if attention.latent is not None:
            raise Unsupported(
                f"{spec.architecture} uses multi-head latent attention (rank {attention.latent.kv_rank}); "
                "this backend runs grouped-query attention only: choose another model"
            )
        if layer.order not in ORDERS:
            raise Unsupported(f"layer order {layer.order!r} is unknown; known: {', '.join(ORDERS)}")


class Decoder:
    """Weights of one model, and its forward pass over flat ragged tokens."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        """Raises: Unsupported."""
        check_dense(spec)
        self.spec = spec
        self._ops = ops
        # `1 + w` is folded into the weight while loading, in float32: one operation less a step.
        self._norm = replace(spec.norm, add_one=False)
        self._layers: list[_LayerWeights] = []
        self._embed: Any = None
        self._head: Any = None
        self._final_norm: Any = None

    def load(self, source: TensorSource) -> None:
        """Take every weight from `source` once, in file order of a checkpoint: embedding, layers, head.

        Raises: WeightsError from `source`.
        """
        spec, ops = self.spec, self._ops
        table = source.tensor("embed.weight")
        self._embed = ops.pack("embed", [table], "vocab")
        self._layers = [self._load_layer(source, i, spec.layer(i)) for i in range(spec.num_layers)]
        self._final_norm = self._pack_norm(source, "norm", spec.norm)
        if not spec.tie_embeddings:
            table = source.tensor("head.weight")
        bias = source.tensor("head.bias") if spec.head_bias else None
        self._head = ops.pack("head", [table], "vocab", bias)

    def _load_layer(self, source: TensorSource, index: int, layer: Layer) -> _LayerWeights:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, MLP)  # check_dense

        def linear(name: str, parts: list[str], shard: str, has_bias: bool) -> Any:
            stems = [f"layers.{index}.{part}" for part in parts]
            biases = [source.tensor(f"{stem}.bias") for stem in stems] if has_bias else []
            weights = [source.tensor(f"{stem}.weight") for stem in stems]
            return self._ops.pack(f"layers.{index}.{name}", weights, shard, _joined(biases))

        def norm(name: str, norm_spec: Norm | None, present: bool = True) -> Any:
            if norm_spec is None or not present:
                return None
            return self._pack_norm(source, f"layers.{index}.{name}", norm_spec)

        is_sandwich, is_parallel = layer.order == "sandwich", layer.order == "parallel"
        return _LayerWeights(
            attention_norm=norm("attention_norm", self.spec.norm),
            qkv=linear("qkv", ["q", "k", "v"], "column", attention.qkv_bias),
            q_norm=norm("q_norm", attention.qk_norm),
            k_norm=norm("k_norm", attention.qk_norm),
            o=linear("o", ["o"], "row", attention.out_bias),
            attention_post_norm=norm("attention_post_norm", self.spec.norm, is_sandwich),
            mlp_norm=norm("mlp_norm", self.spec.norm, not is_parallel),
            gate_up=linear("gate_up", ["gate", "up"] if mlp.gated else ["up"], "column", mlp.bias),
            down=linear("down", ["down"], "row", mlp.bias),
            mlp_post_norm=norm("mlp_post_norm", self.spec.norm, is_sandwich),
        )

    def _pack_norm(self, source: TensorSource, stem: str, norm: Norm) -> Any:
        weight = source.tensor(f"{stem}.weight")
        if norm.add_one:
            weight = weight + 1.0
        bias = source.tensor(f"{stem}.bias") if norm.bias else None
        return self._ops.pack(stem, [weight], "none", bias)

    # ---- forward ---------------------------------------------------------------------------------

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: Any, adapters: StepAdapters | None = None
    ) -> Tensor:
        """[T], [T] -> hidden states after the final norm [T, hidden_size].

        `step` is handed to `Ops.attention`. Writes the K and V of all tokens to the paged cache. None for
        `adapters` computes the base model alone.
        """
        spec, ops = self.spec, self._ops
        x = ops.embed(token_ids, self._embed)
        if spec.embed_scale != 1.0:
            x = x * spec.embed_scale
        delta: Tensor | None = None  # what the last block adds to the residual stream
        for index, weights in enumerate(self._layers):
            x, delta = self._forward_layer(x, delta, index, weights, positions, step, adapters)
        return ops.norm(x, self._final_norm, self._norm, delta)[0]

    def _forward_layer(
        self,
        x: Tensor,
        delta: Tensor | None,
        index: int,
        weights: _LayerWeights,
        positions: Tensor,
        step: Any,
        adapters: StepAdapters | None,
    ) -> tuple[Tensor, Tensor]:
        """The residual stream before this layer's last addition, and that addition."""
        ops, spec, layer = self._ops, self.spec, self.spec.layer(index)
        h, x = ops.norm(x, weights.attention_norm, self._norm, delta)
        attended = self._attention(h, index, weights, positions, step, adapters)
        if layer.order == "sandwich":
            attended = ops.norm(attended, weights.attention_post_norm, self._norm)[0]
        if layer.order == "parallel":
            delta = attended + self._mlp(h, index, weights, adapters)
            return x, delta if spec.residual_scale == 1.0 else delta * spec.residual_scale
        if spec.residual_scale != 1.0:
            attended = attended * spec.residual_scale
        h, x = ops.norm(x, weights.mlp_norm, self._norm, attended)
        delta = self._mlp(h, index, weights, adapters)
        if layer.order == "sandwich":
            delta = ops.norm(delta, weights.mlp_post_norm, self._norm)[0]
        return x, delta if spec.residual_scale == 1.0 else delta * spec.residual_scale

    def _attention(
        self,
        h: Tensor,
        index: int,
        weights: _LayerWeights,
        positions: Tensor,
        step: Any,
        adapters: StepAdapters | None,
    ) -> Tensor:
        ops, attention = self._ops, self.spec.layer(index).attention
        heads, kv_heads = attention.num_heads, attention.num_kv_heads
        qkv = ops.linear(h, weights.qkv, _delta(adapters, index, "qkv"))
        qkv = qkv.view(qkv.shape[0], heads + 2 * kv_heads, attention.head_dim)  # -1 is refused at T = 0
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        q, k = self._placed(q, k, attention, weights, positions)
        out = ops.attention(q, k, v, index, attention, step)
        joined = out.reshape(out.shape[0], heads * attention.head_dim)
        return ops.linear(joined, weights.o, _delta(adapters, index, "o"))

    def _placed(
        self, q: Tensor, k: Tensor, attention: Attention, weights: _LayerWeights, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, normed and rotated to their positions where the layer has that."""
        ops, rope = self._ops, attention.rope
        if attention.qk_norm is None:
            return (q, k) if rope is None else ops.rope(q, k, positions, rope)
        norm = replace(attention.qk_norm, add_one=False)
        if rope is None:
            return ops.norm(q, weights.q_norm, norm)[0], ops.norm(k, weights.k_norm, norm)[0]
        return ops.norm_rope(q, k, weights.q_norm, weights.k_norm, norm, positions, rope)

    def _mlp(self, h: Tensor, index: int, weights: _LayerWeights, adapters: StepAdapters | None) -> Tensor:
        ops, mlp = self._ops, self.spec.layer(index).mlp
        assert isinstance(mlp, MLP)  # check_dense
        inner = ops.linear(h, weights.gate_up, _delta(adapters, index, "gate_up"))
        if mlp.gated:
            size = mlp.intermediate_size
            inner = ops.activation(inner[:, :size], inner[:, size:], mlp.activation)
        else:
            inner = ops.activation(inner, None, mlp.activation)
        return ops.linear(inner, weights.down, _delta(adapters, index, "down"))

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] after the final norm -> [R, vocab_size], scaled and capped as the spec says."""
        spec = self.spec
        logits = self._ops.linear(hidden, self._head)
        if spec.logits_scale != 1.0:
            logits = logits * spec.logits_scale
        if spec.logits_soft_cap is not None:
            cap = spec.logits_soft_cap
            logits = (logits / cap).tanh() * cap
        return logits


def _delta(adapters: StepAdapters | None, index: int, name: str) -> Delta | None:
    return None if adapters is None else adapters.delta(f"layers.{index}.{name}")


def _joined(parts: list[Tensor]) -> Tensor | None:
    """Biases of fused parts, end to end; None for none."""
    if not parts:
        return None
    total = parts[0].new_empty(sum(part.shape[0] for part in parts))
    start = 0
    for part in parts:
        total[start : start + part.shape[0]] = part
        start += part.shape[0]
    return total
