"""What the attention of the twins takes does not grow with the context, and is the same in any pieces."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trivet_cuda import twins

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 2, 32, 16


class Live(TorchDispatchMode):
    """The most bytes that results held at once."""

    def __init__(self) -> None:
        super().__init__()
        self._now = self.peak = 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in self._seen:
                storage = each.untyped_storage()
                self._seen[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return result

    def _gone(self, key: int) -> None:
        self._now -= self._seen.pop(key)


def attended(name: str, length: int, num_tokens: int, window: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    blocks = -(-length // BLOCK_SIZE)
    shape = (1 + blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    table = (1 + torch.randperm(blocks, generator=generator)).int()[None]
    query = torch.randn((num_tokens, HEADS, HEAD_DIM), generator=generator)
    lengths = torch.tensor([length], dtype=torch.int32)
    if name == "decode":
        return twins.decode_attention(
            query, keys, values, None, None, table, lengths, 0.2, window, 0.0, 1, 90
        )
    starts, tiles = torch.tensor([0, num_tokens]).int(), torch.tensor([[0, 0]]).int()
    where = (table, starts, lengths, tiles)
    return twins.extend_attention(query, keys, values, None, None, *where, 0.2, window, 0.0, 90)


@pytest.mark.parametrize(("name", "num_tokens"), [("decode", 1), ("extend", 7)])
@pytest.mark.parametrize("window", [0, 300])
def test_pieces_of_keys_give_what_all_give_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, num_tokens: int, window: int
) -> None:
    monkeypatch.setattr(twins, "MAX_KEYS", 1 << 20)
    whole = attended(name, 1000, num_tokens, window)
    monkeypatch.setattr(twins, "MAX_KEYS", 64)
    torch.testing.assert_close(attended(name, 1000, num_tokens, window), whole)


@pytest.mark.parametrize(("name", "num_tokens"), [("decode", 1), ("extend", 7)])
def test_a_longer_context_takes_no_more_memory(name: str, num_tokens: int) -> None:
    peaks = []
    for length in (4 * twins.MAX_KEYS, 16 * twins.MAX_KEYS):
        held = 2 * 4 * (1 + length // BLOCK_SIZE) * BLOCK_SIZE * KV_HEADS * HEAD_DIM
        with Live() as live:
            attended(name, length, num_tokens)
        peaks.append(live.peak - held)
    assert peaks[1] < 1.5 * peaks[0], peaks
