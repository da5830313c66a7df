"""The fullest step that can come, so that its memory is measured before requests wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trivet.contract import Batch


def fullest_lengths(max_num_batched_tokens: int, max_model_len: int, max_num_seqs: int) -> tuple[int, ...]:
    """New tokens of each sequence, ascending: as many tokens as there may be, and as many decodes beside.

    A budget beyond `max_model_len` takes several prompts to fill.
    """
    prompts = min(max_num_seqs, -(-max_num_batched_tokens // max_model_len))
    decodes = min(max_num_seqs, max_num_batched_tokens) - prompts
    rest = min(max_num_batched_tokens - decodes, prompts * max_model_len)
    longer, more = divmod(rest, prompts)
    return (1,) * decodes + (longer,) * (prompts - more) + (longer + 1,) * more


def warm_up_step(lengths: Sequence[int], block_size: int, num_cached: int = 0) -> Batch:
    """New tokens of each sequence behind `num_cached` that are in KV already, all in the blocks from 1 on.

    No sequence owns one yet, and a plan has that many: one sequence of `max_model_len` always fits. Which of
    several writes to a slot stays there does not matter.
    """
    counts = np.array(lengths, np.int32)
    every = np.arange(len(counts), dtype=np.int32)
    columns = -(-(num_cached + int(counts.max())) // block_size)
    ends = counts.cumsum(dtype=np.int32)
    return Batch(
        step=0,
        slots=every,
        query_start_loc=np.concatenate((np.zeros(1, np.int32), ends)),
        seq_lens=counts + np.int32(num_cached),
        block_tables=(np.tile(1 + np.arange(columns, dtype=np.int32), (len(counts), 1)),),
        token_ids=np.zeros(int(ends[-1]), np.int32),
        positions=np.concatenate([num_cached + np.arange(length, dtype=np.int32) for length in counts]),
        logits_rows=ends - 1,
        row_seqs=every,
    )
