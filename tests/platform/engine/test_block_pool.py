"""Who holds which block, and what the prefix cache remembers."""

from __future__ import annotations

import pytest

from trivet.engine.block_pool import BlockPool

KEYS = [bytes([index]) * 16 for index in range(20)]


def make_pool(num_blocks: int = 9) -> BlockPool:
    return BlockPool(num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_model_len=32)


def blocks_of(pool: BlockPool, slot: int) -> list[int]:
    row = pool.table[slot]
    return row[row > 0].tolist()


def fill(pool: BlockPool, slot: int, num_tokens: int, keys: list[bytes], step: int = 1) -> list[int]:
    """Open a slot and publish its first blocks; returns its blocks."""
    pool.open(slot, [], num_tokens)
    pool.publish(slot, 0, keys, step)
    pool.check_integrity()
    return blocks_of(pool, slot)


def test_block_0_is_never_given_out() -> None:
    pool = make_pool()
    pool.open(0, [], 32)
    assert pool.num_free == 0
    assert sorted(blocks_of(pool, 0)) == list(range(1, 9))
    assert pool.usage == 1
    pool.check_integrity()


def test_a_slot_grows_by_whole_blocks_and_only_when_it_must() -> None:
    pool = make_pool()
    pool.open(1, [], 5)
    assert len(blocks_of(pool, 1)) == 2
    assert pool.grow(1, 8)
    assert len(blocks_of(pool, 1)) == 2
    assert pool.grow(1, 9)
    assert len(blocks_of(pool, 1)) == 3
    pool.check_integrity()


def test_growth_without_room_changes_nothing() -> None:
    pool = make_pool()
    pool.open(0, [], 24)
    pool.open(1, [], 4)
    before = pool.table.copy()
    assert not pool.grow(1, 16)
    assert (pool.table == before).all()
    assert pool.grow(1, 8)
    pool.check_integrity()


def test_closing_gives_everything_back_and_clears_the_table() -> None:
    pool = make_pool()
    pool.open(2, [], 30)
    pool.close(2)
    assert pool.num_free == pool.num_usable
    assert pool.usage == 0
    assert not pool.table.any()
    pool.check_integrity()


def test_a_published_prefix_is_found_as_far_as_it_is_known() -> None:
    pool = make_pool()
    blocks = fill(pool, 0, 12, KEYS[:3])
    assert pool.find(KEYS[:5]) == blocks
    assert pool.find(KEYS[:2]) == blocks[:2]
    assert pool.find([KEYS[9], *KEYS[:3]]) == []


def test_shared_blocks_are_free_only_when_the_last_holder_has_gone() -> None:
    pool = make_pool()
    blocks = fill(pool, 0, 8, KEYS[:2])
    pool.open(1, blocks, 12)
    assert blocks_of(pool, 1)[:2] == blocks
    assert pool.num_free == 5
    pool.close(0)
    assert pool.num_free == 5
    pool.check_integrity()
    pool.close(1)
    assert pool.num_free == 8
    pool.check_integrity()


def test_a_free_prefix_is_revived() -> None:
    pool = make_pool()
    blocks = fill(pool, 0, 8, KEYS[:2])
    pool.close(0)
    assert pool.find(KEYS[:2]) == blocks
    pool.open(1, blocks, 9)
    assert blocks_of(pool, 1)[:2] == blocks
    assert pool.num_free == 5
    pool.check_integrity()


def test_blank_blocks_are_taken_before_remembered_ones() -> None:
    pool = make_pool()
    blocks = fill(pool, 0, 8, KEYS[:2])
    pool.close(0)
    pool.open(1, [], 24)
    assert pool.find(KEYS[:2]) == blocks
    pool.check_integrity()


def test_the_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning() -> None:
    pool = make_pool()
    fill(pool, 0, 12, KEYS[:3])
    fill(pool, 1, 8, KEYS[10:12])
    pool.close(0)
    pool.close(1)
    pool.open(2, [], 4 * 4)  # three blank ones and one remembered
    assert len(pool.find(KEYS[:3])) == 2
    assert len(pool.find(KEYS[10:12])) == 2
    pool.check_integrity()
    assert pool.grow(2, 4 * 6)
    assert pool.find(KEYS[:3]) == []
    assert len(pool.find(KEYS[10:12])) == 2
    pool.check_integrity()


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (1, False)])
def test_room_is_counted_with_what_a_hit_takes_from_the_free(spare: int, fits: bool) -> None:
    pool = make_pool()
    blocks = fill(pool, 0, 8, KEYS[:2])
    pool.close(0)
    pool.open(1, [], 12)  # three of eight held
    assert pool.can_open(blocks, 20, spare) is fits


def test_the_first_copy_of_a_block_is_the_one_that_is_found() -> None:
    pool = make_pool()
    first = fill(pool, 0, 4, KEYS[:1])
    fill(pool, 1, 4, KEYS[:1])
    assert pool.find(KEYS[:1]) == first
    pool.close(1)
    pool.close(0)
    pool.check_integrity()
    assert pool.find(KEYS[:1]) == first


def test_withdrawal_takes_back_what_no_confirmed_step_has_filled() -> None:
    pool = make_pool()
    fill(pool, 0, 8, KEYS[:2], step=1)
    pool.publish(0, 1, KEYS[1:2], 2)  # known already: nothing new is promised
    fill(pool, 1, 8, KEYS[4:6], step=2)
    fill(pool, 2, 4, KEYS[8:9], step=3)
    pool.close(2)
    pool.confirm(1)
    pool.withdraw_unconfirmed()
    assert len(pool.find(KEYS[:2])) == 2
    assert pool.find(KEYS[4:6]) == []
    assert pool.find(KEYS[8:9]) == []
    pool.check_integrity()
    pool.withdraw_unconfirmed()
    assert len(pool.find(KEYS[:2])) == 2


def test_withdrawal_survives_that_a_block_was_evicted_meanwhile() -> None:
    pool = make_pool(num_blocks=3)
    fill(pool, 0, 8, KEYS[:2], step=1)
    pool.close(0)
    pool.open(1, [], 8)  # evicts both
    pool.publish(1, 0, KEYS[5:6], 1)
    pool.withdraw_unconfirmed()
    assert pool.find(KEYS[5:6]) == []
    pool.check_integrity()


def test_suspect_blocks_are_forgotten_wherever_they_are() -> None:
    pool = make_pool()
    fill(pool, 0, 8, KEYS[:2])
    pool.withdraw(KEYS[:4])
    assert pool.find(KEYS[:2]) == []
    pool.check_integrity()
    pool.close(0)
    assert pool.num_free == 8
    pool.check_integrity()


def test_a_reset_forgets_every_prefix() -> None:
    pool = make_pool()
    fill(pool, 0, 8, KEYS[:2])
    fill(pool, 1, 8, KEYS[4:6])
    pool.close(0)
    pool.reset_cache()
    assert pool.find(KEYS[:1]) == pool.find(KEYS[4:5]) == []
    pool.check_integrity()


@pytest.mark.parametrize("fault", ["lost", "shared", "scratch", "stale"])
def test_the_integrity_check_finds_faults(fault: str) -> None:
    pool = make_pool()
    fill(pool, 0, 8, KEYS[:2])
    if fault == "lost":
        pool._blank.pop()
    elif fault == "shared":
        pool.table[1, 0] = pool.table[0, 0]
        pool._num_held[1] = 1
    elif fault == "scratch":
        pool.table[0, 0] = 0
    else:
        pool.table[3, 5] = 1
    with pytest.raises(AssertionError):
        pool.check_integrity()
