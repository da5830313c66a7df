"""A scheduled step as flat arrays."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract import ON_DEVICE, KVCacheSpec, KVGroup, KVKind, MemoryPlan
from trivet.engine.batch import BatchBuilder
from trivet.engine.block_pool import BlockPool
from trivet.engine.scheduler import Scheduled
from trivet.engine.sequence import Sequence
from trivet.sampling_params import SamplingParams


class HostMemory:
    """The one thing of a runner that the builder uses."""

    def __init__(self, max_in_flight: int = 2) -> None:
        self.max_in_flight = max_in_flight
        self.sizes: list[int] = []

    def host_buffer(self, num_int32: int) -> np.ndarray:
        self.sizes.append(num_int32)
        return np.full(num_int32, -99, np.int32)


def make_plan(num_groups: int = 1) -> MemoryPlan:
    group = KVGroup(KVKind.FULL, (0,), "int32", 4)
    return MemoryPlan(KVCacheSpec(4, (group,) * num_groups), (20,) * num_groups, 0, (), 16, 40)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(num_blocks=20, block_size=4, max_num_seqs=5, max_model_len=40)


def make_builder(pool: BlockPool, plan: MemoryPlan, runner: HostMemory) -> BatchBuilder:
    slots = {"sql": 1, "chat": 2}
    return BatchBuilder(runner, plan, pool, slots)  # type: ignore[arg-type]  # it only takes buffers


def part(slot: int, tokens: list[int], start: int, num_tokens: int, draws: bool = True) -> Scheduled:
    return Scheduled(Sequence(f"r{slot}", tokens, SamplingParams()), slot, start, num_tokens, draws)


def test_a_mixed_step_becomes_the_contracts_arrays(pool: BlockPool) -> None:
    pool.open(3, [], 6)
    pool.open(0, [], 3)
    pool.open(4, [], 13)
    step = [
        part(3, [10, 11, 12, 13, 14], 5, 1),  # its newest token is still on the device
        part(0, [20, 21, 22], 2, 1),
        part(4, list(range(30, 43)), 4, 5, draws=False),
    ]
    batch = make_builder(pool, make_plan(), HostMemory()).build(7, step)
    assert batch.step == 7
    assert batch.slots.tolist() == [3, 0, 4]
    assert batch.query_start_loc.tolist() == [0, 1, 2, 7]
    assert batch.seq_lens.tolist() == [6, 3, 9]
    assert batch.token_ids.tolist() == [ON_DEVICE, 22, 34, 35, 36, 37, 38]
    assert batch.positions.tolist() == [5, 2, 4, 5, 6, 7, 8]
    assert batch.logits_rows.tolist() == [0, 1]
    assert batch.row_seqs.tolist() == [0, 1]
    (table,) = batch.block_tables
    assert table.tolist() == pool.table[[3, 0, 4], :3].tolist()
    assert table[1].tolist() == [*pool.table[0, :1], 0, 0]


def test_a_chunk_may_end_with_a_token_that_is_on_the_device(pool: BlockPool) -> None:
    pool.open(0, [], 4)
    batch = make_builder(pool, make_plan(), HostMemory()).build(1, [part(0, [5, 6, 7], 1, 3)])
    assert batch.token_ids.tolist() == [6, 7, ON_DEVICE]
    assert batch.logits_rows.tolist() == [2]


def test_a_step_in_the_middle_of_prompts_has_no_rows(pool: BlockPool) -> None:
    pool.open(0, [], 8)
    batch = make_builder(pool, make_plan(), HostMemory()).build(1, [part(0, [5] * 8, 0, 4, draws=False)])
    assert batch.logits_rows.shape == batch.row_seqs.shape == (0,)


def test_all_arrays_lie_in_one_buffer(pool: BlockPool) -> None:
    runner = HostMemory()
    pool.open(0, [], 40)
    batch = make_builder(pool, make_plan(), runner).build(1, [part(0, [5] * 40, 0, 16)])
    arrays = (batch.slots, batch.query_start_loc, batch.seq_lens, batch.token_ids, batch.positions)
    arrays = (*arrays, batch.logits_rows, batch.row_seqs, *batch.block_tables)
    bases = [array if array.base is None else array.base for array in arrays]
    assert all(base is bases[0] for base in bases)
    assert all(array.flags.c_contiguous for array in arrays)
    for first in range(len(arrays)):
        assert not any(np.shares_memory(arrays[first], other) for other in arrays[first + 1 :])


def test_the_largest_step_fits_the_buffer(pool: BlockPool) -> None:
    for slot in range(5):
        pool.open(slot, [], 12)
    pool.close(4)
    pool.open(4, [], 28)
    step = [part(slot, [5] * 11, 10, 1) for slot in range(4)] + [part(4, [5] * 28, 16, 12)]
    batch = make_builder(pool, make_plan(), HostMemory()).build(1, step)
    assert len(batch.token_ids) == 16


def test_a_steps_arrays_rest_while_it_may_be_in_flight(pool: BlockPool, depth: int) -> None:
    pool.open(0, [], 8)
    builder = make_builder(pool, make_plan(), HostMemory(depth))
    batches = [builder.build(number, [part(0, [number] * 8, 0, 3)]) for number in range(1, depth + 1)]
    assert [batch.token_ids.tolist() for batch in batches] == [[n] * 3 for n in range(1, depth + 1)]


def test_a_batch_does_not_see_what_happens_to_the_pool_later(pool: BlockPool) -> None:
    pool.open(0, [], 8)
    batch = make_builder(pool, make_plan(), HostMemory()).build(1, [part(0, [1] * 8, 0, 8)])
    before = batch.block_tables[0].copy()
    pool.close(0)
    assert (batch.block_tables[0] == before).all()


def test_every_group_gets_the_table(pool: BlockPool) -> None:
    pool.open(0, [], 8)
    batch = make_builder(pool, make_plan(num_groups=3), HostMemory()).build(1, [part(0, [1] * 8, 0, 8)])
    assert len(batch.block_tables) == 3


def test_each_sequence_brings_the_slot_of_its_adapter(pool: BlockPool) -> None:
    """Nothing where all are of the base model; the rows of a buffer that is full to its end are kept."""
    for slot in range(3):
        pool.open(slot, [], 8)
    step = [part(slot, [slot] * 8, 0, 3) for slot in range(3)]
    builder = make_builder(pool, make_plan(), HostMemory())
    assert builder.build(1, step).adapters is None
    step[0].sequence.adapter, step[2].sequence.adapter = "chat", "sql"
    batch = builder.build(2, step)
    assert batch.adapters is not None
    assert batch.adapters.tolist() == [2, 0, 1]
    assert batch.token_ids.tolist() == [0] * 3 + [1] * 3 + [2] * 3
