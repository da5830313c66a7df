"""What the native runner can run, in which form each weight is packed, and how many bytes that takes.

Arithmetic over a spec and file headers, without torch and without the kernels themselves.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from trivet.contract import MemoryPart
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Rope
from trivet.runners.adapter_memory import PART_NAME, adapted_parts
from trivet.weights.index import WeightIndex
from trivet_cpu import memory_plan
from trivet_cpu.memory_plan import Shape
from trivet_cpu.native_library import CacheKind, Kind, SourceFormat

logger = logging.getLogger(__name__)

GROUP = 32  # columns that share a scale, and rows of a unit: both axes are padded to it
LANES = 16
MAX_HEAD_DIM = 512
PIECE_KEYS = 256  # keys that attention computes at once: PIECE_KEYS in kernels/attention.h
PARTIAL_HEAD = 16  # floats before the result of a piece
SCRATCH_BYTES = 639_040  # of a thread: kernels/scratch.h
ROWS = 16  # of activations that stand together in the integer form and in bf16
# Of a column of activations; the integer form has a cache line for 32 (kernels/weights.h, QuantisedGroup).
FORM_BYTES = {"f32": 4, "bf16": 2, "q8": 2}
LOWS = 3  # kernels/adapters.h
# Of each kind of activations, the matrices that it is multiplied with and that may be adapted.
ADAPTED_INPUTS = {
    "normed": frozenset({"q", "k", "v", "gate", "up"}),
    "attended": frozenset({"o"}),
    "inner": frozenset({"down"}),
}
CACHE_KINDS = {"f32": CacheKind.F32, "bf16": CacheKind.BF16, "int8": CacheKind.INT8}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}

AS_STORED = "stored"  # quantised weights stay as the file has them
# Formats that are packed as they are, number for number (q4_k: scales rounded to half precision).
STORED_KINDS = {
    "q8_0": (Kind.Q8, SourceFormat.Q8_0),
    "q4_0": (Kind.Q4, SourceFormat.Q4_0),
    "q4_1": (Kind.Q4, SourceFormat.Q4_1),
    "q4_k": (Kind.Q4, SourceFormat.Q4_K),
}
FLOAT_FORMATS = frozenset({"f32", "f16", "bf16", "f64"})
# Of 32 columns of a row: numbers, and one scale or a scale and a minimum in half precision.
GROUP_BYTES = {Kind.F32: 128, Kind.BF16: 64, Kind.Q8: 34, Kind.Q4: 20}


def padded(size: int) -> int:
    """The next multiple of what the kernels work on at once."""
    return -(-size // GROUP) * GROUP


def unknown_part(spec: ModelSpec, block_size: int) -> str | None:
    """What of the model or the setting the kernels do not compute; None where they know all of it."""
    if spec.shapes_only:
        return f"{spec.architecture} has no spec"
    if block_size % LANES:
        return f"block_size {block_size} is no multiple of {LANES}"
    if spec.norm.kind != "rms" or spec.norm.bias:
        return f"norm {spec.norm.kind!r}"
    if spec.logits_soft_cap is not None:
        return "a soft cap on logits"
    if spec.hidden_size % LANES:
        return f"hidden size {spec.hidden_size}, no multiple of {LANES}"
    for layer in spec.kinds:
        part = _unknown_part_of_layer(layer)
        if part:
            return part
    return None


def unknown_attention(attention: Attention) -> str | None:
    """What of writing K and V and attending the kernels do not compute, once q and k are turned."""
    head_dim = attention.head_dim
    checks = {
        "latent attention": attention.latent is not None,
        "ALiBi": attention.alibi,
        "a soft cap on attention": attention.soft_cap is not None,
        f"head_dim {head_dim}": bool(head_dim % LANES) or head_dim > MAX_HEAD_DIM,
    }
    return next((part for part, is_unknown in checks.items() if is_unknown), None)


def _unknown_part_of_layer(layer: Layer) -> str | None:
    attention, rope = layer.attention, layer.attention.rope
    unknown = unknown_attention(attention)
    if unknown is not None:
        return unknown
    checks = {
        "mixture of experts": not isinstance(layer.mlp, MLP),
        f"layer order {layer.order!r}": layer.order != "pre",
        "interleaved rope": rope is not None and rope.interleaved,
        f"norm {attention.qk_norm.kind!r} of queries" if attention.qk_norm else "": (
            attention.qk_norm is not None and (attention.qk_norm.kind != "rms" or attention.qk_norm.bias)
        ),
        "its activation": isinstance(layer.mlp, MLP) and layer.mlp.activation not in ACTIVATIONS,
    }
    return next((part for part, is_unknown in checks.items() if is_unknown), None)


def kind_of(file_format: str, dtype: str, float_dtype: str) -> Kind:
    """How a matrix that a file stores in this format is packed.

    Args:
        dtype: "f32" | "bf16" | `AS_STORED`.
        float_dtype: "f32" | "bf16", what `AS_STORED` makes of plain floats.
    """
    if dtype == AS_STORED:
        if file_format in STORED_KINDS:
            return STORED_KINDS[file_format][0]
        if file_format not in FLOAT_FORMATS:
            return Kind.Q8  # the nearest: 8 bits and a scale per 32
        dtype = float_dtype
    return Kind.F32 if dtype == "f32" else Kind.BF16


def packed_bytes(kind: Kind, rows: int, columns: int) -> int:
    """Of a matrix [rows, columns] with its padding, scales and minima."""
    return padded(rows) * padded(columns) // GROUP * GROUP_BYTES[kind]


@dataclass(frozen=True, slots=True)
class NativeShape:
    """What the sizes depend on besides the model and its files."""

    shape: Shape  # dtype "f32" | "bf16": of plain floats
    dtype: str  # "f32" | "bf16" | AS_STORED
    num_threads: int
    # Whether the kernels have AMX tiles, which multiply quantised weights with activations in bf16.
    has_tiles: bool = False

    def kind(self, file_format: str) -> Kind:
        return kind_of(file_format, self.dtype, self.shape.dtype)


def fixed_parts(spec: ModelSpec, weights: WeightIndex, native: NativeShape) -> tuple[MemoryPart, ...]:
    """All but the KV cache: exactly what the runner allocates, and the largest temporaries of a step."""
    adapters = adapter_bytes(spec, native)
    return (
        MemoryPart("weights", weights_bytes(spec, weights, native)),
        *((MemoryPart(PART_NAME, adapters),) if adapters else ()),
        MemoryPart("activations", sum(buffer_bytes(spec, weights, native).values())),
        MemoryPart("logits", logits_bytes(spec, native)),
    )


def weights_bytes(spec: ModelSpec, weights: WeightIndex, native: NativeShape) -> int:
    """Packed matrices; vectors in float32, padded. A tied head is the embedding itself."""
    total = 0
    for name, shape in expected_tensors(spec):
        if len(shape) == 1:
            total += 4 * padded(shape[0])
        else:
            total += packed_bytes(native.kind(weights[name].format), *shape)
    return total


def adapter_bytes(spec: ModelSpec, native: NativeShape) -> int:
    """All slots of all matrices that may be adapted, in the dtype of plain floats; both axes are padded."""
    slots = native.shape.adapters
    if not slots.num_slots:
        return 0
    values = sum(padded(part.num_columns) + padded(part.num_rows) for part in adapted_parts(spec, slots))
    return slots.num_slots * slots.max_rank * values * memory_plan.DTYPE_BYTES[native.shape.dtype]


def _adapter_buffers(native: NativeShape) -> dict[str, int]:
    """Of a step: A x of up to three matrices, and the books of which token has which adapter, twice."""
    slots, tokens = native.shape.adapters, native.shape.max_num_batched_tokens
    if not slots.num_slots:
        return {}
    return {"adapters.lows": tokens * LOWS * slots.max_rank * 4, "adapters.books": 2 * 5 * tokens * 4}


def forms_of(spec: ModelSpec, weights: WeightIndex, native: NativeShape) -> dict[str, frozenset[str]]:
    """In which forms the input of each group of products is wanted, by the kinds of their weights."""

    def forms(names: list[str]) -> frozenset[str]:
        kinds = {native.kind(weights[f"{name}.weight"].format) for name in names}
        wanted = {{Kind.F32: "f32", Kind.BF16: "bf16"}.get(kind, "q8") for kind in kinds}
        # With tiles steps of a few rows read the integers, and those of more bf16.
        return frozenset(wanted | {"bf16"} if native.has_tiles and "q8" in wanted else wanted)

    inputs: dict[str, list[str]] = {
        "normed": ["embed" if spec.tie_embeddings else "head"],
        "attended": [],
        "inner": [],
    }
    for index in range(spec.num_layers):
        mlp = spec.layer(index).mlp
        assert isinstance(mlp, MLP)
        first = ("gate", "up") if mlp.gated else ("up",)
        inputs["normed"] += [f"layers.{index}.{name}" for name in ("q", "k", "v", *first)]
        inputs["attended"].append(f"layers.{index}.o")
        inputs["inner"].append(f"layers.{index}.down")
    return {name: forms(products) for name, products in inputs.items()}


def widths_of(spec: ModelSpec) -> dict[str, int]:
    """Padded columns of each kind of activations, the widest layer's."""
    attentions = [layer.attention for layer in spec.kinds]
    return {
        "normed": padded(spec.hidden_size),
        "attended": max(padded(a.num_heads * a.head_dim) for a in attentions),
        "inner": max(
            padded(layer.mlp.intermediate_size) for layer in spec.kinds if isinstance(layer.mlp, MLP)
        ),
    }


def distinct_ropes(spec: ModelSpec) -> list[Rope]:
    """A table of cosines and sines is made for each."""
    return list(dict.fromkeys(k.attention.rope for k in spec.kinds if k.attention.rope is not None))


def qkv_stride(spec: ModelSpec) -> int:
    """Columns of the buffer in which q, k and v of a token stand side by side."""
    attentions = [layer.attention for layer in spec.kinds]
    return padded(max((a.num_heads + 2 * a.num_kv_heads) * a.head_dim for a in attentions))


def logits_rows(spec: ModelSpec, native: NativeShape) -> int:
    """Rows of one piece of logits; no more than the activations have."""
    shape = native.shape
    return min(memory_plan.logits_rows(spec, shape.max_logits_rows), shape.max_num_batched_tokens)


def form_bytes(form: str, num_rows: int, columns: int) -> int:
    """Of activations [num_rows, columns] in one form."""
    rows = num_rows if form == "f32" else -(-num_rows // ROWS) * ROWS
    return rows * columns * FORM_BYTES[form]


def buffer_bytes(spec: ModelSpec, weights: WeightIndex, native: NativeShape) -> dict[str, int]:
    """The runner's buffers by name; those of activations are "normed.q8" and so on."""
    tokens = native.shape.max_num_batched_tokens
    sizes = {
        "x": tokens * padded(spec.hidden_size) * 4,
        "qkv": tokens * qkv_stride(spec) * 4,
        "slots": tokens * 8,
        "scratch": native.num_threads * SCRATCH_BYTES,
        **_adapter_buffers(native),
    }
    sizes["partials"] = partial_bytes(spec, native)
    sizes["unpacked"] = native.num_threads * unpacked_bytes(spec, native)
    sizes |= {f"rope.{i}": tokens * rope.dim * 4 for i, rope in enumerate(distinct_ropes(spec))}
    widths = widths_of(spec)
    for name, forms in forms_of(spec, weights, native).items():
        # In a step of few tokens each thread has normed rows of its own (kernels/step.cpp, `rows_of`).
        rows = max(tokens, ROWS * native.num_threads) if name == "normed" else tokens
        for form in forms:
            sizes[f"{name}.{form}"] = form_bytes(form, rows, widths[name])
        # Adapters multiply floats, which are written for them alone where the weights read another form.
        if "f32" not in forms and ADAPTED_INPUTS[name].intersection(native.shape.adapters.parts):
            sizes[f"{name}.f32_for_adapters"] = form_bytes("f32", rows, widths[name])
    return {name: -(-size // 64) * 64 for name, size in sizes.items()}


def attention_parts(spec: ModelSpec, num_tokens: int, num_threads: int) -> tuple[int, int, int]:
    """Bytes of what attention by itself computes in: rows of q, k and v in float32, slots, scratch."""
    sizes = (4 * num_tokens * qkv_stride(spec), 8 * num_tokens, num_threads * SCRATCH_BYTES)
    rows, slots, scratch = (-(-size // 64) * 64 for size in sizes)
    return rows, slots, scratch


def logits_stride(spec: ModelSpec) -> int:
    """Columns of the logits buffer."""
    return padded(spec.vocab_size)


def logits_bytes(spec: ModelSpec, native: NativeShape) -> int:
    """A piece in float32, and the sampler's scratch: two rows for each thread."""
    return (logits_rows(spec, native) + 2 * native.num_threads) * logits_stride(spec) * 4


def partial_bytes(spec: ModelSpec, native: NativeShape) -> int:
    """Of attention: one sequence of full length for each thread, cut into pieces; the rest is not cut."""
    if native.num_threads == 1:
        return 0
    pieces = native.num_threads * -(-native.shape.max_model_len // PIECE_KEYS)
    attentions = [layer.attention for layer in spec.kinds]
    return pieces * max(a.num_heads * (a.head_dim + PARTIAL_HEAD) for a in attentions) * 4


def unpacked_bytes(spec: ModelSpec, native: NativeShape) -> int:
    """Of a thread: keys and values of a piece in bfloat16, where the cache has eight bits."""
    if native.shape.kv_dtype != "int8":
        return 0
    return 2 * PIECE_KEYS * max(layer.attention.head_dim for layer in spec.kinds) * 2


def kv_layer_bytes(spec: ModelSpec, index: int, native: NativeShape, num_blocks: int) -> int:
    """Keys and values of one layer."""
    token_bytes = memory_plan.kv_token_bytes(spec.layer(index).attention, native.shape.kv_dtype)
    return num_blocks * native.shape.block_size * token_bytes


def log_conversions(weights: WeightIndex, native: NativeShape) -> None:
    """One line that names formats which are not computed as they stand."""
    if native.dtype != AS_STORED:
        return
    odd: dict[str, int] = {}
    for tensor in weights.tensors:
        if len(tensor.shape) > 1 and tensor.format not in (*STORED_KINDS, *FLOAT_FORMATS):
            odd[tensor.format] = odd.get(tensor.format, 0) + math.prod(tensor.shape)
    for name, count in sorted(odd.items()):
        logger.info("weights=%s numbers=%d converted_to=q8 (8 bits, a scale per %d)", name, count, GROUP)
