"""What an engine holds at this moment: who is in the batch, and who holds which KV blocks. For people to see.

Made between two steps for whoever looks (`messages.Look`): 0.2 ms for a pool of 100,000 blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from trivet.engine.block_pool import BlockPool
    from trivet.engine.core import EngineCore

MAX_CELLS = 2048  # blocks that are told of; of a larger pool every n-th
BLANK, CACHED, SHARED = -1, -2, -3  # in place of a slot: holds nothing, a known prefix, of several sequences


class Lane(msgspec.Struct, frozen=True):
    """One sequence of the batch."""

    slot: int
    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt
    num_computed_tokens: int  # of prompt and output
    num_output_tokens: int
    max_total_tokens: int  # where it ends at the latest
    priority: int
    num_blocks: int


class BatchView(msgspec.Struct, frozen=True):
    """`blocks` holds slots, or BLANK, CACHED or SHARED; each stands for `blocks_per_cell` of the pool."""

    max_num_seqs: int
    block_size: int
    num_blocks: int
    num_waiting: int
    token_budget: int  # tokens of a step
    lanes: list[Lane]
    blocks_per_cell: int
    blocks: list[int]


def batch_view(core: EngineCore) -> BatchView:
    """On the engine's thread."""
    pool, scheduler = core.block_pool, core.scheduler
    stride = -(-pool.num_usable // MAX_CELLS)
    lanes = [
        Lane(
            one.slot,
            one.request_id.rpartition("/")[2],
            len(one.prompt_token_ids),
            one.num_cached_tokens,
            one.num_computed_tokens,
            one.num_tokens - len(one.prompt_token_ids),
            one.max_total_tokens,
            one.priority,
            pool.num_places(one.slot) // pool.block_size,
        )
        for one in scheduler.running
    ]
    return BatchView(
        max_num_seqs=len(pool.table),
        block_size=pool.block_size,
        num_blocks=pool.num_usable,
        num_waiting=len(scheduler.waiting),
        token_budget=scheduler.token_budget,
        lanes=lanes,
        blocks_per_cell=stride,
        blocks=_cells(pool, lanes, stride),
    )


def _cells(pool: BlockPool, lanes: list[Lane], stride: int) -> list[int]:
    owners = np.full(pool.num_usable + 1, BLANK, np.int32)
    for lane in lanes:
        owners[pool.table[lane.slot, : lane.num_blocks]] = lane.slot
    shown = range(1, pool.num_usable + 1, stride)
    cells: list[int] = owners[1::stride].tolist()
    for place, block in enumerate(shown):
        if cells[place] == BLANK and pool.is_cached(block):
            cells[place] = CACHED
        elif cells[place] >= 0 and pool.num_holders(block) > 1:
            cells[place] = SHARED
    return cells
