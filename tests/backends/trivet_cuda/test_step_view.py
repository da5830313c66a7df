"""One upload a step: places, padding, tiles of chunks."""

from __future__ import annotations

import numpy as np
import torch

from trivet.contract import Batch
from trivet_cuda.step_view import StepView
from trivet_cuda.upload import ALIGNMENT, packed, upload

CPU = torch.device("cpu")


def mixed() -> Batch:
    """Two decodes, then chunks of 3 and 70 tokens."""
    lens, query = np.array([6, 9, 3, 90], np.int32), np.array([1, 1, 3, 70], np.int32)
    positions = np.concatenate([np.arange(a - b, a) for a, b in zip(lens, query, strict=True)])
    return Batch(
        step=1,
        slots=np.array([5, 2, 7, 0], np.int32),
        query_start_loc=np.array([0, 1, 2, 5, 75], np.int32),
        seq_lens=lens,
        block_tables=(np.arange(4 * 12, dtype=np.int32).reshape(4, 12) + 1,),
        token_ids=np.arange(75, dtype=np.int32),
        positions=positions.astype(np.int32),
        logits_rows=np.array([0], np.int32),
        row_seqs=np.array([0], np.int32),
    )


def test_each_token_has_its_place_in_the_cache() -> None:
    view = StepView.of(mixed(), 8, 4, CPU)
    assert view.kv_slots[:5].tolist() == [1 * 8 + 5, (13 + 1) * 8 + 0, 25 * 8, 25 * 8 + 1, 25 * 8 + 2]
    assert view.token_slots[:6].tolist() == [5, 2, 7, 7, 7, 0]
    assert view.num_decodes == 2


def test_tiles_cover_the_chunks_and_nothing_else() -> None:
    view = StepView.of(mixed(), 8, 4, CPU)
    assert view.chunk_tiles(32).tolist() == [[2, 0], [3, 0], [3, 32], [3, 64]]
    assert view.chunk_tiles(32) is view.chunk_tiles(32)
    assert view.chunk_tiles(1).shape == (73, 2)


def test_arrays_share_one_aligned_buffer() -> None:
    arrays = {"a": np.array([1, 2, 3], np.int32), "b": np.array([[0.5], [1.5]], np.float32)}
    host, starts = packed(arrays, pinned=False)
    assert starts == {"a": 0, "b": ALIGNMENT}
    assert len(host) == 2 * ALIGNMENT
    found = upload(arrays, CPU)
    assert found["a"].tolist() == [1, 2, 3]
    assert found["b"].tolist() == [[0.5], [1.5]]
