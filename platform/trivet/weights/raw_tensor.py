"""A tensor as a file's header describes it, and the checks that every header must pass.

A header comes from a stranger: offsets that leave the file or overlap would make the reader read
another tensor's bytes, or end the process with a bus error when the mapping is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trivet.errors import WeightsError


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor under the name that its file gives it."""

    name: str
    shape: tuple[int, ...]  # row-major, as NumPy has it: the last axis is contiguous
    format: str  # a key of `formats.FORMATS`
    file: str
    offset: int  # bytes from the start of the file
    size_bytes: int


def check_layout(tensors: Sequence[RawTensor], file: str, file_bytes: int, data_start: int) -> None:
    """Tensors must stand in the file, behind the header, and apart.

    Raises: WeightsError naming file and tensor.
    """
    ordered = sorted(tensors, key=lambda tensor: (tensor.offset, tensor.size_bytes))
    for tensor in ordered:
        if tensor.offset < data_start:
            raise WeightsError(
                f"{file}: tensor {tensor.name!r} starts at byte {tensor.offset}, inside the header, which "
                f"ends at byte {data_start}; the file is damaged: fetch it again"
            )
        if tensor.offset + tensor.size_bytes > file_bytes:
            raise WeightsError(
                f"{file}: tensor {tensor.name!r} ends at byte {tensor.offset + tensor.size_bytes} and the "
                f"file has {file_bytes}; it is truncated: fetch it again"
            )
    for first, second in pairwise(tensor for tensor in ordered if tensor.size_bytes):
        if first.offset + first.size_bytes > second.offset:
            raise WeightsError(
                f"{file}: tensors {first.name!r} and {second.name!r} overlap at byte {second.offset}; "
                "the file is damaged: fetch it again"
            )
