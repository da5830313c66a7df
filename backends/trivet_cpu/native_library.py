"""The C++ kernels as Python sees them: the structs and functions of `kernels/abi.h`.

ctypes releases the GIL in every call. Pointers are plain integers: who fills a struct keeps the arrays alive.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from trivet_cpu.kernel_build import KernelsUnavailable

_int, _float, _pointer, _long = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p, ctypes.c_int64


# Columns of a step's rows as `TrivetSampling` orders them, and what it fills.
SAMPLING_ARRAYS = (
    "draws",
    "target_ids",
    "top_k",
    "temperature",
    "top_p",
    "min_p",
    "uniform",
    "extra_ids",
    "edit_start",
    "edit_ids",
    "mask_rows",
    "edit_mul",
    "edit_add",
    "mask_bits",
)
SAMPLING_RESULTS = (
    "token_ids",
    "is_finite",
    "refused",
    "logprobs",
    "ranks",
    "top_ids",
    "top_logprobs",
    "extra_logprobs",
)


# Of a layer, in the order of `AdaptedPart` in `kernels/adapters.h`.
ADAPTED_PARTS = ("q", "k", "v", "o", "gate", "up", "down")
STEP_ARRAYS = ("token_ids", "positions", "query_start_loc", "seq_lens", "block_table")


class Kind(IntEnum):
    """How a packed matrix holds its numbers; see `kernels/weights.h`."""

    F32 = 0
    BF16 = 1
    Q8 = 2
    Q4 = 3


class CacheKind(IntEnum):
    """What a number of the KV cache is; see `kernels/kv_cache.h`."""

    F32 = 0
    BF16 = 1
    INT8 = 2


class SourceFormat(IntEnum):
    """What `trivet_pack` reads."""

    FLOATS = 0
    Q8_0 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_K = 4


class Weight(ctypes.Structure):
    """A packed matrix."""

    _fields_: ClassVar = [
        ("kind", _int),
        ("rows", _int),
        ("columns", _int),
        ("pad", _int),
        ("data", _pointer),
        ("bias", _pointer),
    ]


class Activations(ctypes.Structure):
    """Rows of activations, in each form that has an address."""

    _fields_: ClassVar = [
        ("columns", _int),
        ("is_f32_for_adapters", _int),
        ("f32", _pointer),
        ("bf16", _pointer),
        ("groups", _pointer),
    ]


class Cache(ctypes.Structure):
    """Keys and values of one layer; `kind` a `CacheKind`."""

    _fields_: ClassVar = [
        *((name, _int) for name in ("kind", "block_size", "num_heads", "head_dim")),
        ("data", _pointer),
    ]


class LayerQueries(ctypes.Structure):
    """Where a layer's queries stand, and what they see."""

    _fields_: ClassVar = [
        ("cache", ctypes.POINTER(Cache)),
        ("num_heads", _int),
        ("window", _int),
        ("rows", _pointer),
        ("row_stride", _long),
    ]


class StepSequences(ctypes.Structure):
    """The sequences of a step, as attention sees them."""

    _fields_: ClassVar = [
        ("num_seqs", _int),
        *((name, _pointer) for name in ("query_start_loc", "seq_lens", "block_table")),
        ("table_stride", _long),
    ]


class AttentionSpace(ctypes.Structure):
    """Memory for partial results, and for int8 caches what is unpacked of them."""

    _fields_: ClassVar = [
        ("partials", _pointer),
        ("num_partials", _long),
        ("unpacked", _pointer),
        ("unpacked_stride", _long),
    ]


class AdaptedMatrix(ctypes.Structure):
    """One matrix's adapters in all slots; see `kernels/adapters.h`."""

    _fields_: ClassVar = [
        *((name, _pointer) for name in ("a", "b", "ranks")),
        ("columns", _int),
        ("rows", _int),
    ]


class AdapterSpace(ctypes.Structure):
    """Memory for the adapters of a step."""

    _fields_: ClassVar = [
        ("lows", _pointer),
        ("books", _pointer),
        *((name, _int) for name in ("max_tokens", "max_rank", "kind", "pad")),
    ]


class Pack(ctypes.Structure):
    """Rows of a weight file, and where their packed form goes."""

    _fields_: ClassVar = [
        ("source", _pointer),
        ("row_bytes", _long),
        ("format", _int),
        ("kind", _int),
        ("rows", _int),
        ("columns", _int),
        ("data", _pointer),
    ]


class Layer(ctypes.Structure):
    """One decoder layer."""

    _fields_: ClassVar = [
        *((name, Weight) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        ("cache", Cache),
        *((name, _pointer) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, _int) for name in ("num_heads", "window", "rope", "rope_dim", "activation")),
        ("scale", _float),
        ("qk_eps", _float),
        ("pad", _int),
        ("adapted", ctypes.POINTER(AdaptedMatrix)),
    ]


class RopeTable(ctypes.Structure):
    """Rotary position embedding of one kind, and the buffer of its cosines and sines."""

    _fields_: ClassVar = [("frequencies", _pointer), ("table", _pointer), ("dim", _int), ("factor", _float)]


class Model(ctypes.Structure):
    """All layers, embedding, head and buffers."""

    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(Layer)),
        ("ropes", ctypes.POINTER(RopeTable)),
        *((name, _int) for name in ("num_layers", "num_ropes", "hidden_size", "padded_hidden_size")),
        ("qkv_stride", _int),
        ("pad", _int),
        ("embed", Weight),
        ("head", Weight),
        ("norm", _pointer),
        *((name, _float) for name in ("eps", "embed_scale", "residual_scale", "logits_scale")),
        ("x", _pointer),
        ("qkv", _pointer),
        ("slots", _pointer),
        *((name, Activations) for name in ("normed", "attended", "inner")),
        ("attention", AttentionSpace),
        ("scratch", _pointer),
        ("adapters", AdapterSpace),
    ]


class Step(ctypes.Structure):
    """One batch."""

    _fields_: ClassVar = [
        ("num_tokens", _int),
        ("num_seqs", _int),
        *((name, _pointer) for name in STEP_ARRAYS),
        ("table_stride", _long),
        ("last_start_loc", _pointer),
        ("adapters", _pointer),
    ]


class SamplingRows(ctypes.Structure):
    """Some rows of `contract.Sampling`, and where their results go."""

    _fields_: ClassVar = [
        ("logits", _pointer),
        ("stride", _long),
        ("scratch", _pointer),
        ("scratch_stride", _long),
        *(
            (name, _int)
            for name in ("num_tokens", "num_rows", "first_row", "num_top", "num_extra", "num_masks")
        ),
        ("mask_stride", _long),
        *((name, _pointer) for name in SAMPLING_ARRAYS),
        *((name, _pointer) for name in SAMPLING_RESULTS),
    ]


class Draws(ctypes.Structure):
    """The newest token of each slot, and whose the rows of a step are."""

    _fields_: ClassVar = [(name, _pointer) for name in ("newest", "slots", "row_seqs")]


class Progress(ctypes.Structure):
    """What the host learns of a step on a stream."""

    _fields_: ClassVar = [("started_ns", _long), ("ended_ns", _long), ("status", _int), ("pad", _int)]


STRUCTS = (
    Weight,
    Activations,
    Cache,
    Pack,
    Layer,
    RopeTable,
    Model,
    Step,
    SamplingRows,
    LayerQueries,
    StepSequences,
    AttentionSpace,
    Draws,
    Progress,
    AdaptedMatrix,
    AdapterSpace,
)  # in the order of `trivet_struct_bytes`


NO_MEMORY = "the kernels found no memory for the books of a step"


def _raise_where_memory_ran_out(status: int, function: object, arguments: tuple[object, ...]) -> int:
    """As ctypes' `errcheck`. Raises: MemoryError."""
    if status:
        raise MemoryError(NO_MEMORY)
    return status


def _raise_where_nothing_was_posted(number: int, function: object, arguments: tuple[object, ...]) -> int:
    """As ctypes' `errcheck`. Raises: MemoryError."""
    if not number:
        raise MemoryError(NO_MEMORY)
    return number


# With a status: "errcheck" in ctypes' words.
_CHECKED = ("trivet_forward", "trivet_attend", "trivet_attend_cache", "trivet_sample")
_POSTS = ("trivet_post_forward", "trivet_post_sample")
_FUNCTIONS = {
    "trivet_pool_create": (_pointer, [_int]),
    "trivet_pool_destroy": (None, [_pointer]),
    "trivet_pool_crew_size": (_int, [_pointer]),
    "trivet_stream_create": (_pointer, [_int]),
    "trivet_stream_destroy": (None, [_pointer]),
    "trivet_stream_wait": (None, [_pointer, _long]),
    "trivet_post_forward": (
        _long,
        [_pointer, *map(ctypes.POINTER, (Model, Step, Draws, Progress))],
    ),
    "trivet_post_sample": (
        _long,
        [_pointer, ctypes.POINTER(Model), _pointer, *map(ctypes.POINTER, (SamplingRows, Draws, Progress))],
    ),
    "trivet_pack": (None, [_pointer, ctypes.POINTER(Pack)]),
    "trivet_unpack_row": (None, [ctypes.POINTER(Weight), _int, _int, _pointer]),
    "trivet_forward": (_int, [_pointer, ctypes.POINTER(Model), ctypes.POINTER(Step)]),
    "trivet_logits": (None, [_pointer, ctypes.POINTER(Model), _pointer, _int, _pointer, _long]),
    "trivet_embed": (
        None,
        [_pointer, ctypes.POINTER(Weight), _pointer, _int, _int, _float, _pointer],
    ),
    "trivet_rms_norm": (None, [_pointer, _pointer, _pointer, _int, _int, _float, _pointer]),
    "trivet_rope": (None, [_pointer, _pointer, _pointer, ctypes.POINTER(RopeTable), _int, _int, _int]),
    "trivet_activate": (None, [_pointer, _pointer, _pointer, _int, _int, _int, _pointer]),
    "trivet_attend": (_int, [_pointer, ctypes.POINTER(Model), ctypes.POINTER(Step), _int]),
    "trivet_quantise": (None, [ctypes.POINTER(Activations), _pointer, _int, _int]),
    "trivet_multiply": (
        None,
        [_pointer, ctypes.POINTER(Weight), ctypes.POINTER(Activations), _int, _pointer, _long],
    ),
    "trivet_attend_cache": (
        _int,
        [_pointer, ctypes.POINTER(LayerQueries), ctypes.POINTER(StepSequences), _long],
    ),
    "trivet_write_kv": (None, [ctypes.POINTER(Cache), _int, _long, _pointer, _pointer]),
    "trivet_sample": (_int, [_pointer, ctypes.POINTER(SamplingRows)]),
    "trivet_scratch_bytes": (_long, []),
    "trivet_struct_bytes": (_long, [_int]),
}


def load_library(path: Path) -> ctypes.CDLL:
    """The library with its functions typed.

    Raises: KernelsUnavailable where it cannot be loaded or its structs are not ours.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailable(
            f"the CPU kernels {path} cannot be loaded: {error}; delete the file"
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        if name in _CHECKED:
            function.errcheck = _raise_where_memory_ran_out
        if name in _POSTS:
            function.errcheck = _raise_where_nothing_was_posted
    for number, struct in enumerate(STRUCTS):
        size = library.trivet_struct_bytes(number)
        if size != ctypes.sizeof(struct):
            raise KernelsUnavailable(
                f"{path}: {struct.__name__} has {size} bytes and Python expects {ctypes.sizeof(struct)}; "
                "delete the file"
            )
    return library
