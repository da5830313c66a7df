"""Access to a model's tensors by canonical name, through the mapped files.

Mapping instead of reading: the pages of a tensor that is used as it stands are shared with the page
cache and with every other engine process that serves the same model.
"""

from __future__ import annotations

import math
import mmap
import os
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from trivet.errors import WeightsError
from trivet.weights.dequantize import dequantize
from trivet.weights.formats import row_bytes
from trivet.weights.index import TensorInfo, WeightIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


class TensorReader:
    """Reads the tensors of an index; each file is opened when it is first needed.

    Arrays returned by `raw` keep their mapping alive, also past `close`.
    """

    def __init__(self, index: WeightIndex) -> None:
        self.index = index
        self._maps: dict[str, mmap.mmap] = {}

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as the file has them: mapped, read-only, not copied.

        Returns [rows, row_bytes] where the tensor has two or more axes, else [size_bytes]. Rows of a tensor
        with `unpermute_heads` stand in the file's order; `rows` puts them right.

        Raises: WeightsError naming file and tensor.
        """
        info = self.index[name]
        data = np.frombuffer(self._map(info), np.uint8, info.size_bytes, info.offset)
        if len(info.shape) < 2:
            return data
        return data.reshape(math.prod(info.shape[:-1]), row_bytes(info.format, info.shape[-1]))

    def rows(self, name: str) -> NDArray[np.uint8]:
        """Like `raw` with rows in canonical order; a copy only where they must be moved."""
        info = self.index[name]
        data = self.raw(name)
        return _unpermute(data, info.unpermute_heads) if info.unpermute_heads else data

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor in its shape, dequantised and scaled, rows in canonical order.

        Raises: WeightsError naming file and tensor.
        """
        info = self.index[name]
        try:
            values = dequantize(self.raw(name), info.format, info.shape)
        except WeightsError as error:
            raise WeightsError(f"{info.file}: tensor {name!r}: {error}") from error
        if info.scale != 1.0:
            values = values * np.float32(info.scale)
        return _unpermute(values, info.unpermute_heads) if info.unpermute_heads else values

    def close(self) -> None:
        """Forget the mappings; each ends with the last array that looks into it. Idempotent."""
        # mmap.close() would raise BufferError while an array looks into the mapping.
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _map(self, info: TensorInfo) -> mmap.mmap:
        if info.file not in self._maps:
            try:
                with open(info.file, "rb") as stream:
                    if not os.fstat(stream.fileno()).st_size:
                        raise WeightsError(
                            f"{info.file} is empty, tensor {info.name!r} cannot be read: fetch it again"
                        )
                    self._maps[info.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise WeightsError(
                    f"{info.file}: tensor {info.name!r} cannot be read: {error.strerror or error}; "
                    "put the file back or fetch it again"
                ) from error
        mapped = self._maps[info.file]
        if info.offset + info.size_bytes > len(mapped):
            raise WeightsError(
                f"{info.file}: tensor {info.name!r} ends at byte {info.offset + info.size_bytes} and the "
                f"file now has {len(mapped)}; it was changed or cut: fetch it again"
            )
        return mapped


def _unpermute(rows: NDArray[Scalar], num_heads: int) -> NDArray[Scalar]:
    """[heads * head_dim, ...] from [heads, head_dim / 2, 2] order to [heads, 2, head_dim / 2] order."""
    split = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)
