"""One step as the device sees it: int32 arrays in one buffer, and what of it the host knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trivet_cuda.upload import upload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trivet.contract import Batch, Int32


@dataclass(slots=True)
class StepView:
    """What the operations need of one batch; all tensors are int32 on the device."""

    token_ids: Tensor  # [T], -1 for the newest token of the slot
    token_slots: Tensor  # [T] home of each token's sequence
    positions: Tensor  # [T]
    kv_slots: Tensor  # [T] where each token's K and V go; -1 is padding
    adapters: Tensor  # [T] slot of each token's adapter; 0 is the base model
    block_table: Tensor  # [S, n]
    seq_lens: Tensor  # [S]
    query_starts: Tensor  # [S + 1]
    decode_table: Tensor  # [num_decodes, n] and
    decode_lens: Tensor  # [num_decodes], the same tensors for all layers
    num_decodes: int  # sequences of one token, which come first
    bucket: int  # at least num_decodes
    query_lens: Int32 | None = None  # [S] on the host; None in a graph, where every sequence has one token
    tiles: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, block_size: int, bucket: int, device: torch.device) -> StepView:
        """Slots are computed on the host, where positions and tables are."""
        arrays = {**token_arrays(batch, block_size), "query_starts": batch.query_start_loc}
        query_lens = np.diff(batch.query_start_loc)
        num_decodes = int(np.searchsorted(query_lens, 2))  # sorted by query length
        view = cls.over(upload(arrays, device), num_decodes, bucket)
        view.query_lens = query_lens
        return view

    @classmethod
    def over(cls, arrays: Mapping[str, Tensor], num_decodes: int, bucket: int) -> StepView:
        """Arrays by the names of the fields."""
        return cls(
            token_ids=arrays["token_ids"],
            token_slots=arrays["token_slots"],
            positions=arrays["positions"],
            kv_slots=arrays["kv_slots"],
            adapters=arrays["adapters"],
            block_table=arrays["block_table"],
            seq_lens=arrays["seq_lens"],
            query_starts=arrays["query_starts"],
            decode_table=arrays["block_table"][:num_decodes],
            decode_lens=arrays["seq_lens"][:num_decodes],
            num_decodes=num_decodes,
            bucket=bucket,
        )

    def chunk_tiles(self, tile_tokens: int) -> Tensor:
        """[n, 2] sequence and first token of each tile of the chunks; the same for all layers of the step."""
        if tile_tokens not in self.tiles:
            assert self.query_lens is not None
            counts = -(-self.query_lens // tile_tokens)
            counts[: self.num_decodes] = 0
            seqs = np.repeat(np.arange(len(counts)), counts)
            firsts = (np.arange(len(seqs)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_tokens
            rows = np.stack((seqs, firsts), 1).astype(np.int32)
            self.tiles[tile_tokens] = upload({"tiles": rows}, self.token_ids.device)["tiles"]
        return self.tiles[tile_tokens]


def token_arrays(batch: Batch, block_size: int) -> dict[str, Int32]:
    """By the names of `StepView`."""
    table = batch.block_tables[0]
    query_lens = np.diff(batch.query_start_loc)
    seqs = np.repeat(np.arange(len(query_lens)), query_lens)
    adapters = np.zeros(len(seqs), np.int32) if batch.adapters is None else batch.adapters[seqs]
    blocks = table[seqs, batch.positions // block_size] if len(seqs) else batch.positions
    return {
        "token_ids": batch.token_ids,
        "token_slots": batch.slots[seqs].astype(np.int32),
        "positions": batch.positions,
        "kv_slots": (blocks * block_size + batch.positions % block_size).astype(np.int32),
        "adapters": adapters,
        "block_table": table,
        "seq_lens": batch.seq_lens,
    }


def padded_arrays(batch: Batch, block_size: int, bucket: int) -> dict[str, Int32]:
    """Of a step of decodes, without its table, with rows up to `bucket` that compute nothing anybody sees.

    They write no KV and have no length.
    """
    missing = bucket - len(batch.slots)
    filler = {"kv_slots": -1}
    padded = {
        name: np.pad(array, (0, missing), constant_values=filler.get(name, 0))
        for name, array in token_arrays(batch, block_size).items()
        if name != "block_table"
    }
    return {**padded, "query_starts": np.arange(bucket + 1, dtype=np.int32)}
