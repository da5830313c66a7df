"""The fullest steps and draws that can come, whose memory is measured before requests wait; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trivet.contract import NO_TARGET, Batch, MemoryPlan, Sampling

NUM_EDITS = 512  # of a row: tokens that it has seen, with penalties
NUM_TOP = 20  # OpenAI's most


def warm_up_steps(plan: MemoryPlan, max_num_seqs: int, *, apart: bool = False) -> tuple[Batch, ...]:
    """The fullest; and of the longest context the last chunk and the last token.

    Args:
        apart: as `warm_up_step` has it with `num_blocks`, of which one is scratch.
    """
    longest, block_size = plan.max_model_len, plan.kv.block_size
    chunk = min(plan.max_num_batched_tokens, longest)
    fullest = fullest_lengths(plan.max_num_batched_tokens, longest, max_num_seqs)
    return (
        warm_up_step(fullest, block_size, num_blocks=plan.num_blocks[0] - 1 if apart else None),
        warm_up_step((chunk,), block_size, num_cached=longest - chunk),
        warm_up_step((1,), block_size, num_cached=longest - 1),
    )


def fullest_lengths(max_num_batched_tokens: int, max_model_len: int, max_num_seqs: int) -> tuple[int, ...]:
    """New tokens of each sequence, ascending: as many tokens as there may be, and as many decodes beside.

    A budget beyond `max_model_len` takes several prompts to fill.
    """
    prompts = min(max_num_seqs, -(-max_num_batched_tokens // max_model_len))
    decodes = min(max_num_seqs, max_num_batched_tokens) - prompts
    rest = min(max_num_batched_tokens - decodes, prompts * max_model_len)
    longer, more = divmod(rest, prompts)
    return (1,) * decodes + (longer,) * (prompts - more) + (longer + 1,) * more


def warm_up_step(
    lengths: Sequence[int], block_size: int, num_cached: int = 0, num_blocks: int | None = None
) -> Batch:
    """New tokens of each sequence, ascending, behind `num_cached` that are in KV already.

    All in the blocks from 1 on: no sequence owns one yet, and a plan has that many, for one sequence of
    `max_model_len` always fits. Which of several writes to a slot stays there does not matter.

    Args:
        num_blocks: each sequence has some of its own of these, for a device on which every token of a step
            needs a slot of its own; where they do not suffice the longest come first.
    """
    if num_blocks is not None:
        lengths = _within(lengths, block_size, num_blocks)
    counts = np.array(lengths, np.int32)
    every = np.arange(len(counts), dtype=np.int32)
    held = -(-(num_cached + counts) // block_size)
    columns = np.arange(held.max(), dtype=np.int32)
    firsts = 1 + (held.cumsum() - held if num_blocks is not None else 0 * held)
    ends = counts.cumsum(dtype=np.int32)
    return Batch(
        step=0,
        slots=every,
        query_start_loc=np.concatenate((np.zeros(1, np.int32), ends)),
        seq_lens=counts + np.int32(num_cached),
        block_tables=(np.where(columns < held[:, None], firsts[:, None] + columns, 0).astype(np.int32),),
        token_ids=np.zeros(int(ends[-1]), np.int32),
        positions=np.concatenate([num_cached + np.arange(length, dtype=np.int32) for length in counts]),
        logits_rows=ends - 1,
        row_seqs=every,
    )


def _within(lengths: Sequence[int], block_size: int, num_blocks: int) -> list[int]:
    """The longest, as far as blocks go round."""
    kept = []
    for length in reversed(lengths):
        if not num_blocks:
            break
        kept.append(min(length, num_blocks * block_size))
        num_blocks -= -(-kept[-1] // block_size)
    return sorted(kept)


def warm_up_sampling(num_rows: int, num_tokens: int) -> Sampling:
    """What takes the most of a sampler: each row draws behind every limit, and tells its top tokens."""
    ones = np.ones(num_rows, np.float32)
    return Sampling(
        draws=np.ones(num_rows, np.bool_),
        target_ids=np.full(num_rows, NO_TARGET, np.int32),
        temperature=ones,
        top_k=np.full(num_rows, max(1, num_tokens // 2), np.int32),
        top_p=ones * np.float32(0.9),
        min_p=ones * np.float32(0.01),
        uniform=np.zeros((num_rows, 2), np.float32),
        num_logprobs=min(NUM_TOP, num_tokens),
    )


def edited(sampling: Sampling, num_tokens: int) -> Sampling:
    """The same with edits and a mask of every row; every second token is allowed."""
    rows, count = len(sampling.draws), min(NUM_EDITS, num_tokens)
    ids = np.tile(np.arange(count, dtype=np.int32), rows)
    words = -(-num_tokens // 32)
    return replace(
        sampling,
        edit_start=np.arange(rows + 1, dtype=np.int32) * np.int32(count),
        edit_ids=ids,
        edit_mul=np.full(rows * count, 1.1, np.float32),
        edit_add=np.full(rows * count, -0.5, np.float32),
        mask_rows=np.arange(rows, dtype=np.int32),
        mask_bits=np.full((rows, words), 0x55555555, np.uint32),
    )
