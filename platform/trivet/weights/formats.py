"""The ways in which weight files store numbers, and how many bytes each takes.

A format is a row of blocks: `block_size` numbers in `block_bytes` bytes. Plain types have blocks of one.
Names are GGUF's type names and safetensors' dtype names in lower case. Sizes and numbers of the GGUF
types: ggml.h and ggml-common.h of llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Format:
    """`block_size` numbers stand in `block_bytes` bytes."""

    block_size: int
    block_bytes: int


# Every type that a GGUF file may name: its number there, numbers a block, bytes a block.
_GGML = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q8_1": (9, 32, 40),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "q8_k": (15, 256, 292),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "i8": (24, 1, 1),
    "i16": (25, 1, 2),
    "i32": (26, 1, 4),
    "i64": (27, 1, 8),
    "f64": (28, 1, 8),
    "iq1_m": (29, 256, 56),
    "bf16": (30, 1, 2),
    "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "q1_0": (41, 128, 18),
}
# What only safetensors names. Types narrower than a byte fill bytes without gaps.
_SAFETENSORS_ONLY = {
    "bool": (1, 1),
    "u8": (1, 1),
    "u16": (1, 2),
    "u32": (1, 4),
    "u64": (1, 8),
    "c64": (1, 8),
    "f8_e4m3": (1, 1),
    "f8_e4m3fnuz": (1, 1),
    "f8_e5m2": (1, 1),
    "f8_e5m2fnuz": (1, 1),
    "f8_e8m0": (1, 1),
    "f6_e2m3": (4, 3),
    "f6_e3m2": (4, 3),
    "f4": (2, 1),
}

FORMATS = MappingProxyType(
    {name: Format(size, num_bytes) for name, (_, size, num_bytes) in _GGML.items()}
    | {name: Format(size, num_bytes) for name, (size, num_bytes) in _SAFETENSORS_ONLY.items()}
)
GGML_TYPES = MappingProxyType({number: name for name, (number, _, _) in _GGML.items()})
SAFETENSORS_DTYPES = MappingProxyType(
    {
        name.upper(): name
        for name in ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", *_SAFETENSORS_ONLY)
    }
)


def row_bytes(format_name: str, num_columns: int) -> int:
    """Bytes of one row. Raises: ValueError if the row does not end with a block."""
    kind = FORMATS[format_name]
    if num_columns % kind.block_size:
        raise ValueError(
            f"a row of {num_columns} numbers is no multiple of {format_name}'s {kind.block_size}"
        )
    return num_columns // kind.block_size * kind.block_bytes


def tensor_bytes(format_name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor, whose last axis is its row.

    Raises: ValueError if a row does not end with a block.
    """
    if not shape:
        return row_bytes(format_name, 1)
    return math.prod(shape[:-1]) * row_bytes(format_name, shape[-1])
