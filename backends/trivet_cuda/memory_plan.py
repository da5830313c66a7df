"""How much memory one rank of a model takes on a GPU, in bytes: arithmetic over a spec, no allocation.

Weights and KV are exact; what torch's allocator rounds up for them is part of `context`. `activations` and
`logits` bound what one step allocates, until a start has measured it (`contract.Peaks`); the runner holds
the peak of its warm-up to them. `context`, `collectives` and `graphs` are what CUDA and NCCL take beside
us: judged, since no device was at hand to measure them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.contract import KVCacheSpec, KVGroup, KVKind, MemoryPart
from trivet.models.spec import MLP, Attention, ModelSpec
from trivet.runners import model_matrices
from trivet.runners.adapter_memory import adapter_parts, adapter_step_bytes
from trivet.runners.slices import Rank, local_spec
from trivet.runners.step_shape import VALUE_BYTES, StepShape
from trivet.weights.index import WeightIndex
from trivet_cuda.options import CudaOptions
from trivet_cuda.weight_kinds import kind_of, tensor_bytes

NORM_BYTES = 4  # of a value, in float32: 1 + w of Gemma's norms has more bits than bfloat16
INT8_SCALE_BYTES = 4  # of a token, head and K or V
LOGITS_PIECE_BYTES = 24 << 20  # float32 logits sampled at once
# A piece, sorted and summed up in float64, over its size; SORT_COPIES of them are scratch of torch's sort of
# few long rows on CUDA (`segmented_sort_pairs_by_full_sort` in aten/src/ATen/native/cuda/Sort.cu).
SAMPLER_COPIES = 24
SORT_COPIES = 8
CONTEXT_BYTES = 512 << 20  # of CUDA, its libraries, and the kernels that are loaded
NCCL_BYTES = 256 << 20
WORKSPACE_BYTES = 64 << 20  # of cuBLAS and cuBLASLt on one stream: 32 MiB each on Hopper, less elsewhere
FLASHINFER_BYTES = 128 << 20  # of its workspace, as its documentation recommends
GRAPH_BYTES = 16 << 20  # of one captured size of decode; the tensors inside share one pool
# Torch's allocator (c10/cuda/CUDACachingAllocator.cpp): a tensor from LARGE_BYTES on has memory of its own,
# in steps of STEP_BYTES; smaller ones share segments, of which the last is partly empty.
LARGE_BYTES = 10 << 20
STEP_BYTES = 2 << 20
SEGMENTS_BYTES = (20 << 20) + (2 << 20)  # one of each kind


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

    @property
    def captures(self) -> bool:
        """Over several ranks only when asked for: nobody has shown captured collectives to work there."""
        return self.options.captures and (self.options.graphs == "on" or self.num_ranks == 1)


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
        *adapter_parts(spec, shape.adapters, shape.value_bytes, shape.num_ranks),
        MemoryPart("activations", activation_bytes(spec, shape, shape.max_num_batched_tokens)),
        MemoryPart("logits", logits_bytes(spec, shape)),
        MemoryPart("context", CONTEXT_BYTES + rounding_bytes(spec, weights, shape)),
    ]
    if shape.num_ranks > 1:
        parts.append(MemoryPart("collectives", NCCL_BYTES))
    if shape.captures:
        # They are captured on a stream of their own, and their tensors live in a pool of their own.
        pool = activation_bytes(spec, shape, shape.max_num_seqs)
        parts.append(MemoryPart("graphs", pool + len(shape.buckets) * GRAPH_BYTES))
    return tuple(parts)


def weights_bytes(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> int:
    """Of the first rank, whose slices are the largest."""
    return model_matrices.weights_bytes(
        spec,
        weights,
        shape.num_ranks,
        shape.value_bytes,
        lambda *matrix: sum(_tensor_bytes(shape, *matrix)),
        shares_embedding=True,
        norm_bytes=NORM_BYTES,
    )


def rounding_bytes(spec: ModelSpec, weights: WeightIndex, shape: Shape) -> int:
    """What the allocator takes beyond weights, adapters and KV: at 70B up to a GiB."""
    num_others = 3 if shape.adapters.num_slots else 1  # KV is one tensor, adapters' slots are two
    rank, total = Rank(0, shape.num_ranks), SEGMENTS_BYTES + num_others * STEP_BYTES
    for matrix in model_matrices.packed_matrices(spec):
        sizes = rank.height(matrix.num_rows), matrix.num_columns
        if matrix.shard == "row":
            sizes = matrix.num_rows, rank.height(matrix.num_columns)
        formats = [weights[f"{part}.weight"].format for part in matrix.parts]
        large = (each for each in _tensor_bytes(shape, matrix.name, formats, *sizes) if each >= LARGE_BYTES)
        total += sum(-each % STEP_BYTES for each in large)
    return total


def _tensor_bytes(
    shape: Shape, name: str, formats: Sequence[str], rows: int, columns: int
) -> tuple[int, ...]:
    """Of each tensor that holds the matrix."""
    kind = kind_of(shape.options.weights, shape.dtype, name, formats, columns)
    return tensor_bytes(kind, rows, columns, shape.value_bytes)


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
    adapters = adapter_step_bytes(shape.adapters, size, tokens)
    return workspace + tokens * stream + largest + adapters


def logits_rows(spec: ModelSpec, max_logits_rows: int) -> int:
    """Rows of one piece."""
    return max(1, min(max_logits_rows, LOGITS_PIECE_BYTES // (4 * spec.vocab_size)))


def logits_bytes(spec: ModelSpec, shape: Shape) -> int:
    """A piece, and what the sampler makes of it."""
    return logits_rows(spec, shape.max_logits_rows) * spec.vocab_size * 4 * SAMPLER_COPIES
