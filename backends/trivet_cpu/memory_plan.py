"""How much memory the torch runner takes, in bytes: arithmetic over a spec, no allocation.

Weights and KV are exact. `activations` is the workspace that the runner allocates and the largest sum of
temporaries of one step; `logits` is the largest piece of logits with what the sampler makes of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trivet.contract import NO_ADAPTERS, AdapterSlots, KVCacheSpec, KVGroup, KVKind, MemoryPart
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, ModelSpec
from trivet.runners.adapter_memory import adapter_parts, adapter_step_bytes
from trivet.weights.index import WeightIndex

DTYPE_BYTES = {"f32": 4, "bf16": 2}
# Logits of one piece, float32: large enough for one product per piece to be efficient (170 rows of 49k).
LOGITS_PIECE_BYTES = 32 << 20
# engine/sampler.py works on blocks of 4 MiB an array and holds up to six of them.
SAMPLER_BYTES = 6 * (4 << 20)
# One gather brings at most this many token slots, unless one sequence is longer.
WORKSPACE_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Shape:
    """What the sizes depend on besides the model."""

    dtype: str
    kv_dtype: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logits_rows: int
    # Buffers of the native attention in the torch runner (`native_plan.attention_parts`); 0: torch attends.
    attention_bytes: int = 0
    adapters: AdapterSlots = NO_ADAPTERS

    def with_max_model_len(self, length: int) -> Shape:
        return replace(self, max_model_len=length)

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def workspace_blocks(self) -> int:
        """Of one gather: a sequence of full length, or many short ones."""
        longest = self.blocks_per_sequence
        return max(longest, min(longest * self.max_num_seqs, WORKSPACE_SLOTS // self.block_size))


def host_kv_part(size_bytes: int) -> tuple[MemoryPart, ...]:
    """The swap space, where there is one."""
    return (MemoryPart("host_kv", size_bytes),) if size_bytes else ()


def kv_cache_spec(spec: ModelSpec, shape: Shape) -> KVCacheSpec:
    """One group: a window is a mask here, its blocks are not given back."""
    layers = (spec.layer(index).attention for index in range(spec.num_layers))
    group = KVGroup(
        kind=KVKind.FULL,
        layers=tuple(range(spec.num_layers)),
        dtype=shape.kv_dtype,
        token_bytes=sum(kv_token_bytes(attention, shape.kv_dtype) for attention in layers),
    )
    return KVCacheSpec(block_size=shape.block_size, groups=(group,))


def kv_token_bytes(attention: Attention, kv_dtype: str) -> int:
    """K and V of a token in one layer; int8 has a bfloat16 scale for each head's key, and value."""
    if kv_dtype == "int8":
        return _kv_elements(attention) + 2 * attention.num_kv_heads * 2
    return _kv_elements(attention) * DTYPE_BYTES[kv_dtype]


def fixed_parts(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> tuple[MemoryPart, ...]:
    """All but the KV cache."""
    return (
        MemoryPart("weights", weights_bytes(spec, weights, shape.dtype)),
        *adapter_parts(spec, shape.adapters, DTYPE_BYTES[shape.dtype]),
        MemoryPart("activations", workspace_bytes(spec, shape) + temporary_bytes(spec, shape)),
        MemoryPart("logits", logits_bytes(spec, shape)),
    )


def weights_bytes(spec: ModelSpec, weights: WeightIndex, dtype: str) -> int:
    """Matrices and their biases in `dtype`, norms in float32; a tied head is packed once more."""
    if spec.shapes_only:  # transformers' own class decides: every tensor as it is, in `dtype`
        return sum(math.prod(tensor.shape) for tensor in weights.tensors) * DTYPE_BYTES[dtype]
    total = 0
    for name, shape in expected_tensors(spec):
        is_norm = name.rpartition(".")[0].endswith("norm")
        total += math.prod(shape) * (4 if is_norm else DTYPE_BYTES[dtype])
    if spec.tie_embeddings:
        total += spec.vocab_size * spec.hidden_size * DTYPE_BYTES[dtype]
    return total


def workspace_bytes(spec: ModelSpec, shape: Shape) -> int:
    """What `models.torch_attention.PagedKV` gathers into, or what `native_kv.NativeKV` computes in."""
    if shape.attention_bytes:
        return shape.attention_bytes
    widest = max(_kv_elements(layer.attention) for layer in spec.kinds)
    return shape.workspace_blocks * shape.block_size * widest * DTYPE_BYTES[shape.kv_dtype]


def temporary_bytes(spec: ModelSpec, shape: Shape) -> int:
    """The largest sum of tensors that live at once in a step of `max_num_batched_tokens`."""
    tokens, length = shape.max_num_batched_tokens, shape.max_model_len
    size = DTYPE_BYTES[shape.dtype]
    windows = {layer.attention.window for layer in spec.kinds}
    masks = len(windows) * tokens * length * (2 + size)
    return (
        masks
        + adapter_step_bytes(shape.adapters, size, tokens)
        + max(
            max(
                _mlp_bytes(spec, layer.mlp, tokens, size)
                for layer in spec.kinds
                if isinstance(layer.mlp, MLP)
            ),
            max(_attention_bytes(spec, layer.attention, shape) for layer in spec.kinds),
        )
    )


def _mlp_bytes(spec: ModelSpec, mlp: MLP, tokens: int, size: int) -> int:
    # x, h and the block's result; gate and up, act(gate), its product with up.
    return tokens * size * (3 * spec.hidden_size + 4 * mlp.intermediate_size)


def _attention_bytes(spec: ModelSpec, attention: Attention, shape: Shape) -> int:
    tokens, length = shape.max_num_batched_tokens, shape.max_model_len
    size = DTYPE_BYTES[shape.dtype]
    heads = attention.num_heads * attention.head_dim
    # x, h; qkv; q before and after rope with one temporary; the result, gathered and transposed.
    rows = tokens * size * (2 * spec.hidden_size + heads + _kv_elements(attention) + 5 * heads)
    # SDPA lays K and V out anew for every head.
    relaid = 2 * heads * length * size
    if shape.kv_dtype != shape.dtype:
        relaid += _kv_elements(attention) * length * 4
    if attention.soft_cap is not None:  # scores, capped scores, probabilities in float32
        relaid += 3 * attention.num_heads * tokens * length * 4
    return rows + relaid


def logits_rows(spec: ModelSpec, max_logits_rows: int) -> int:
    """Rows of one piece."""
    return max(1, min(max_logits_rows, LOGITS_PIECE_BYTES // (4 * spec.vocab_size)))


def logits_bytes(spec: ModelSpec, shape: Shape) -> int:
    """A piece as the head gives it and in float32, and the sampler's arrays."""
    rows = logits_rows(spec, shape.max_logits_rows)
    piece = rows * spec.vocab_size * (4 + (DTYPE_BYTES[shape.dtype] if shape.dtype != "f32" else 0))
    # A row is the sampler's least block.
    return piece + min(max(SAMPLER_BYTES, 6 * 4 * spec.vocab_size), 6 * 4 * rows * spec.vocab_size)


def _kv_elements(attention: Attention) -> int:
    """Of one token in one layer: its K and its V."""
    return 2 * attention.num_kv_heads * attention.head_dim
