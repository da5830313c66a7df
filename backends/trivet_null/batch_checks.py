"""The core's half of the contract, asserted on every batch and every sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import ON_DEVICE, Batch, BlockCopy, MemoryPlan, PoolKind, Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.contract import Int32

    Array = NDArray[np.generic]


def check_batch(batch: Batch, plan: MemoryPlan, max_num_seqs: int, vocab_size: int) -> None:
    """Raises: AssertionError naming the rule that the batch breaks."""
    num_seqs = len(batch.slots)
    lengths = np.diff(batch.query_start_loc)
    assert all(array.dtype == np.int32 for array in arrays_of(batch)), "arrays are int32"
    assert all(array.flags.c_contiguous for array in arrays_of(batch)), "arrays are C-contiguous"
    assert len(batch.query_start_loc) == num_seqs + 1, "query_start_loc is [S + 1]"
    assert batch.query_start_loc[0] == 0, "query_start_loc starts with 0"
    assert (lengths >= 1).all(), "every sequence has a token"
    assert (np.diff(lengths) >= 0).all(), "sequences are sorted by query length"
    assert len(batch.token_ids) == len(batch.positions) == batch.query_start_loc[-1], "token arrays are [T]"
    assert len(batch.token_ids) <= plan.max_num_batched_tokens, "the token budget holds"
    assert len(np.unique(batch.slots)) == num_seqs, "a slot is used once"
    assert ((batch.slots >= 0) & (batch.slots < max_num_seqs)).all(), "slots are in range"
    token_ids = batch.token_ids
    assert ((token_ids == ON_DEVICE) | ((token_ids >= 0) & (token_ids < vocab_size))).all(), "token ids exist"
    _check_places(batch, plan, lengths)
    assert (np.diff(batch.logits_rows) > 0).all(), "logits_rows ascend"
    owners = np.searchsorted(batch.query_start_loc, batch.logits_rows, side="right") - 1
    assert np.array_equal(owners, batch.row_seqs), "row_seqs name the owners of logits_rows"
    if batch.pooling is not None:
        assert len(batch.pooling) == num_seqs, "pooling is [S]"
        assert np.isin(batch.pooling, list(PoolKind)).all(), "pooling holds PoolKinds"


def _check_places(batch: Batch, plan: MemoryPlan, lengths: Int32) -> None:
    block_size = plan.kv.block_size
    owner = np.repeat(np.arange(len(batch.slots)), lengths)
    expected = batch.seq_lens[owner] - batch.query_start_loc[1:][owner] + np.arange(len(owner))
    assert np.array_equal(batch.positions, expected), "seq_lens are exact and positions end at them"
    assert (batch.positions >= 0).all(), "positions start at 0"
    assert (batch.seq_lens <= plan.max_model_len).all(), "no sequence exceeds max_model_len"
    assert len(batch.block_tables) == len(plan.num_blocks), "one block table a KV group"
    for table, num_blocks in zip(batch.block_tables, plan.num_blocks, strict=True):
        needed = -(-batch.seq_lens // block_size)
        assert table.shape[0] == len(batch.slots), "block tables are [S, widest]"
        assert ((table >= 0) & (table < num_blocks)).all(), "block ids are in range"
        assert table.shape[1] >= needed.max(initial=0), "block tables are wide enough"
        is_needed = np.arange(table.shape[1]) < needed[:, None]
        assert (table[is_needed] > 0).all(), "no sequence owns block 0"
        written = table[owner, batch.positions // block_size] * block_size + batch.positions % block_size
        assert len(np.unique(written)) == len(written), "no KV slot is written twice"


def check_sampling(batch: Batch, sampling: Sampling) -> None:
    """Raises: AssertionError."""
    num_rows = len(batch.logits_rows)
    columns = (
        sampling.draws,
        sampling.target_ids,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.uniform,
    )
    assert all(len(column) == num_rows for column in columns), "a column has a value for each row"
    assert ((sampling.uniform >= 0) & (sampling.uniform < 1)).all(), "uniform is in [0, 1)"
    if sampling.edit_start is not None and sampling.edit_ids is not None:
        assert len(sampling.edit_start) == num_rows + 1, "edit_start is [R + 1]"
        for start, stop in zip(sampling.edit_start[:-1], sampling.edit_start[1:], strict=True):
            row = sampling.edit_ids[start:stop]
            assert len(np.unique(row)) == len(row), "edited ids are distinct within a row"


def arrays_of(value: Batch | Sampling) -> list[Array]:
    """Every array of a step's argument, block copies included."""
    found: list[Array] = []
    for name in value.__dataclass_fields__:
        member = getattr(value, name)
        for item in member if isinstance(member, tuple) else (member,):
            array = item.pairs if isinstance(item, BlockCopy) else item
            if isinstance(array, np.ndarray):
                found.append(array)
    return found


class Unchanged:
    """Copies of a step's arrays, to see that nobody writes to them (rule 6)."""

    def __init__(self, value: Batch | Sampling) -> None:
        self._arrays = arrays_of(value)
        self._copies = [array.copy() for array in self._arrays]

    def check(self) -> None:
        """Raises: AssertionError."""
        for array, copy in zip(self._arrays, self._copies, strict=True):
            assert np.array_equal(array, copy), "a step's arrays changed before it was collected"
