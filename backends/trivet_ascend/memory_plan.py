"""How much memory one rank of a model takes on an NPU, in bytes: arithmetic over a spec, no allocation.

Weights and KV are exact. `activations` and `logits` bound what one step allocates. `context`, `collectives`
and `graphs` are what the runtime takes beside us: judged, since no device was at hand to measure them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.contract import KVCacheSpec, KVGroup, KVKind, MemoryPart
from trivet.models.spec import MLP, Attention, ModelSpec
from trivet.runners import model_matrices
from trivet.runners.adapter_memory import adapter_parts, adapter_step_bytes
from trivet.runners.slices import local_spec
from trivet.runners.step_shape import StepShape
from trivet.weights.index import WeightIndex
from trivet_ascend.decode_graphs import graph_sizes
from trivet_ascend.options import AscendOptions
from trivet_ascend.weight_kinds import kind_of, matrix_bytes, shares_embedding

LOGITS_PIECE_BYTES = 64 << 20  # float32 logits brought to the host at once
CONTEXT_BYTES = 512 << 20  # of ACL, and the kernels that it loads
HCCL_BUFFER_MB = 200  # HCCL_BUFFSIZE, which `launch_env` sets; a communicator has one in and one out
GRAPH_BYTES = 64 << 20  # of one captured size of decode
MAX_ELEMENTS = (1 << 31) - 1  # of a tensor that attention takes
MASK_BYTES = 2048 * 2048  # the triangle that attention wants
SCORES_BYTES = 64 << 20  # float32 scores of a piece of queries, where attention is gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(StepShape):
    """The config with every choice made."""

    options: AscendOptions

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Numbers of decoding sequences for which a graph is captured."""
        return graph_sizes(self.max_num_seqs) if self.options.graphs == "on" else ()


def kv_cache_spec(spec: ModelSpec, shape: Shape) -> KVCacheSpec:
    """Of one rank; one group: a window is a mask here, its blocks are not given back."""
    local = local_spec(spec, shape.num_ranks)
    elements = sum(_kv_elements(local.layer(i).attention) for i in range(spec.num_layers))
    group = KVGroup(KVKind.FULL, tuple(range(spec.num_layers)), shape.dtype, elements * shape.value_bytes)
    return KVCacheSpec(block_size=shape.block_size, groups=(group,))


def most_blocks(spec: ModelSpec, shape: Shape) -> int:
    """With which a layer's keys, like its values, are a tensor that attention takes."""
    local = local_spec(spec, shape.num_ranks)
    widest = max(_kv_elements(layer.attention) // 2 for layer in local.kinds)
    return MAX_ELEMENTS // (shape.block_size * widest)


def fixed_parts(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> tuple[MemoryPart, ...]:
    """All but the KV cache; the weights first."""
    parts = [
        MemoryPart("weights", weights_bytes(spec, weights, shape)),
        *adapter_parts(spec, shape.adapters, shape.value_bytes, shape.num_ranks),
        MemoryPart("activations", activation_bytes(spec, shape)),
        MemoryPart("logits", logits_bytes(spec, shape)),
        MemoryPart("context", CONTEXT_BYTES),
    ]
    if shape.num_ranks > 1:
        parts.append(MemoryPart("collectives", 2 * HCCL_BUFFER_MB << 20))
    if shape.graph_sizes:
        parts.append(MemoryPart("graphs", len(shape.graph_sizes) * GRAPH_BYTES))
    return tuple(parts)


def weights_bytes(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> int:
    """Of the first rank, whose slices are the largest."""
    option, size = shape.options.weights, shape.value_bytes

    def bytes_of(name: str, formats: Sequence[str], rows: int, columns: int) -> int:
        return matrix_bytes(kind_of(option, name, formats, rows, columns), rows, columns, size)

    shares = shares_embedding(option)
    return model_matrices.weights_bytes(
        spec, weights, shape.num_ranks, size, bytes_of, shares_embedding=shares
    )


def activation_bytes(spec: ModelSpec, shape: Shape) -> int:
    """The mask, and the largest sum of tensors that live at once in a step of `max_num_batched_tokens`."""
    tokens, size = shape.max_num_batched_tokens, shape.value_bytes
    local = local_spec(spec, shape.num_ranks)
    largest = 0
    for layer in local.kinds:
        assert isinstance(layer.mlp, MLP)  # check_dense
        attention = layer.attention
        heads = attention.num_heads * attention.head_dim
        # x, h and the block's result; qkv, its contiguous parts before and after rope, the output.
        attending = tokens * size * (3 * spec.hidden_size + 3 * heads + 3 * _kv_elements(attention))
        reason = shape.options.why_gathered(attention, shape.dtype, shape.max_model_len)
        if reason is not None:  # a sequence's keys and values, gathered and in float32; scores thrice
            length = shape.blocks_per_sequence * shape.block_size
            attending += _kv_elements(attention) * length * (size + 4) + 3 * SCORES_BYTES
        feeding = tokens * size * (3 * spec.hidden_size + 4 * layer.mlp.intermediate_size)
        largest = max(largest, attending, feeding)
    return MASK_BYTES + largest + adapter_step_bytes(shape.adapters, size, tokens)


def logits_rows(spec: ModelSpec, max_logits_rows: int) -> int:
    """Rows of one piece."""
    return max(1, min(max_logits_rows, LOGITS_PIECE_BYTES // (4 * spec.vocab_size)))


def logits_bytes(spec: ModelSpec, shape: Shape) -> int:
    """A piece as the head gives it and in float32."""
    rows = logits_rows(spec, shape.max_logits_rows)
    return rows * spec.vocab_size * (4 + shape.value_bytes)


def _kv_elements(attention: Attention) -> int:
    """Of one token in one layer: its K and its V."""
    return 2 * attention.num_kv_heads * attention.head_dim
