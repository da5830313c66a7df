"""How much memory one rank of a model takes on a GPU, in bytes: arithmetic over a spec, no allocation.

Weights and KV are exact. `activations` and `logits` bound what one step allocates; the runner measures the
peak of its warm-up against them. `context`, `collectives` and `graphs` are what CUDA and NCCL take beside us:
judged, since no device was at hand to measure them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.contract import KVCacheSpec, KVGroup, KVKind, MemoryPart
from trivet.models.spec import MLP, Attention, ModelSpec
from trivet.runners import model_matrices
from trivet.runners.slices import local_spec
from trivet.runners.step_shape import VALUE_BYTES, StepShape
from trivet.weights.index import WeightIndex
from trivet_cuda.options import CudaOptions
from trivet_cuda.weight_kinds import kind_of, matrix_bytes

NORM_BYTES = 4  # of a value, in float32: 1 + w of Gemma's norms has more bits than bfloat16
INT8_SCALE_BYTES = 4  # of a token, head and K or V
LOGITS_PIECE_BYTES = 32 << 20  # float32 logits sampled at once
SAMPLER_COPIES = 16  # a piece, sorted and summed up in float64, over its size
CONTEXT_BYTES = 512 << 20  # of CUDA, its libraries, and the kernels that are loaded
NCCL_BYTES = 256 << 20
WORKSPACE_BYTES = 64 << 20  # of cuBLAS and cuBLASLt on one stream: 32 MiB each on Hopper, less elsewhere
FLASHINFER_BYTES = 128 << 20  # of its workspace, as its documentation recommends
GRAPH_BYTES = 16 << 20  # of one captured size of decode; the tensors inside share one pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(StepShape):
    """The config with every choice made."""

    kv_dtype: str
    options: CudaOptions

    @property
    def buckets(self) -> tuple[int, ...]:
        """Numbers of decoding sequences for which kernels are compiled and graphs captured, ascending.

        Close together where they are small: a step costs what its bucket costs.
        """
        wanted = (1, 2, 4, *range(8, 33, 8), *range(48, 257, 16), *range(320, 1 << 14, 64))
        return (*(size for size in wanted if size < self.max_num_seqs), self.max_num_seqs)


def kv_cache_spec(spec: ModelSpec, shape: Shape) -> KVCacheSpec:
    """Of one rank; one group: a window is a mask here, its blocks are not given back."""
    local = local_spec(spec, shape.num_ranks)
    token_bytes = sum(
        token_kv_bytes(local.layer(i).attention, shape.kv_dtype) for i in range(spec.num_layers)
    )
    group = KVGroup(KVKind.FULL, tuple(range(spec.num_layers)), shape.kv_dtype, token_bytes)
    return KVCacheSpec(block_size=shape.block_size, groups=(group,))


def token_kv_bytes(attention: Attention, kv_dtype: str) -> int:
    """Of one token in one layer: its K and its V, with their scales."""
    scale = INT8_SCALE_BYTES if kv_dtype == "int8" else 0
    return 2 * attention.num_kv_heads * (attention.head_dim * VALUE_BYTES[kv_dtype] + scale)


def fixed_parts(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> tuple[MemoryPart, ...]:
    """All but the KV cache; the weights first."""
    parts = [
        MemoryPart("weights", weights_bytes(spec, weights, shape)),
        MemoryPart("activations", activation_bytes(spec, shape, shape.max_num_batched_tokens)),
        MemoryPart("logits", logits_bytes(spec, shape)),
        MemoryPart("context", CONTEXT_BYTES),
    ]
    if shape.num_ranks > 1:
        parts.append(MemoryPart("collectives", NCCL_BYTES))
    if shape.options.captures:
        # They are captured on a stream of their own, and their tensors live in a pool of their own.
        pool = activation_bytes(spec, shape, shape.max_num_seqs)
        parts.append(MemoryPart("graphs", pool + len(shape.buckets) * GRAPH_BYTES))
    return tuple(parts)


def weights_bytes(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> int:
    """Of the first rank, whose slices are the largest."""
    option, size = shape.options.weights, shape.value_bytes

    def bytes_of(name: str, formats: Sequence[str], rows: int, columns: int) -> int:
        return matrix_bytes(kind_of(option, shape.dtype, name, formats, columns), rows, columns, size)

    return model_matrices.weights_bytes(
        spec, weights, shape.num_ranks, size, bytes_of, shares_embedding=True, norm_bytes=NORM_BYTES
    )


def activation_bytes(spec: ModelSpec, shape: Shape, tokens: int) -> int:
    """The largest sum of tensors that live at once in a step of so many tokens."""
    size = shape.value_bytes
    local = local_spec(spec, shape.num_ranks)
    stream = 2 * 4 * spec.hidden_size  # the residual stream before and after an addition, in float32
    largest = 0
    for layer in local.kinds:
        assert isinstance(layer.mlp, MLP)  # decoder.check_dense
        attention = layer.attention
        q, kv = attention.num_heads * attention.head_dim, 2 * attention.num_kv_heads * attention.head_dim
        # The normed input, qkv before and after rope, the output; splits of decoding sequences in float32.
        attending = tokens * size * (2 * spec.hidden_size + 3 * q + 2 * kv)
        attending += min(shape.max_num_seqs, tokens) * 4 * q * 32
        feeding = tokens * size * (2 * spec.hidden_size + 4 * layer.mlp.intermediate_size)
        largest = max(largest, attending, feeding)
    workspace = WORKSPACE_BYTES + (FLASHINFER_BYTES if shape.options.attention == "flashinfer" else 0)
    return workspace + tokens * stream + largest


def logits_rows(spec: ModelSpec, max_logits_rows: int) -> int:
    """Rows of one piece."""
    return max(1, min(max_logits_rows, LOGITS_PIECE_BYTES // (4 * spec.vocab_size)))


def logits_bytes(spec: ModelSpec, shape: Shape) -> int:
    """A piece, and what the sampler makes of it."""
    return logits_rows(spec, shape.max_logits_rows) * spec.vocab_size * 4 * SAMPLER_COPIES
