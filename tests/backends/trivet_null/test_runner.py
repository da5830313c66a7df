"""Tokens come from what stands in the KV blocks, late, and with faults where tests want them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trivet.contract import ON_DEVICE, BlockCopy, RunnerConfig
from trivet.errors import DeviceLost, DoesNotFit, OutOfMemory
from trivet_null.backend import NullOptions
from trivet_null.batch_checks import Unchanged
from trivet_null.model import NullModel
from trivet_null.runner import NullRunner


def test_the_next_token_is_the_documented_function_of_all_tokens(hand: Any) -> None:
    tokens = [5, 6, 7, 8, 9, 10]
    output = hand.run(hand.batch((0, [3, 9], 0, tokens)))
    assert output.token_ids.tolist() == [hand.expected(tokens)]
    output = hand.run(hand.batch((0, [3, 9], 6, [11])))
    assert output.token_ids.tolist() == [hand.expected([*tokens, 11])]


def test_a_block_in_the_wrong_place_changes_the_token(hand: Any) -> None:
    hand.run(hand.batch((0, [1, 2, 3], 0, list(range(5, 14)))))
    right = hand.run(hand.batch((0, [1, 2, 3], 9, [14]))).token_ids[0]
    wrong = hand.run(hand.batch((0, [2, 1, 3], 9, [14]))).token_ids[0]
    assert right == hand.expected(list(range(5, 15)))
    assert wrong != right


def test_every_function_value_depends_on_token_and_position() -> None:
    model = NullModel(48)
    states = {
        int(model.states(np.array(tokens, np.int32), np.array([len(tokens) - 1], np.int32))[0])
        for tokens in ([1, 2], [2, 1], [1, 1], [2, 2], [0, 1, 2], [1, 2, 0], [1])
    }
    assert len(states) == 7


def test_steps_are_carried_out_when_they_are_collected(hand: Any) -> None:
    """A step sees what the step before drew, although that was not collected when it was queued."""
    first = hand.batch((2, [4, 5], 0, [20, 21, 22]))
    hand.runner.forward(first)
    hand.runner.sample(first.step, hand.sampling(1))
    second = hand.batch((2, [4, 5], 3, [ON_DEVICE]))
    hand.runner.forward(second)
    token = int(hand.runner.collect(first.step).token_ids[0])
    hand.runner.sample(second.step, hand.sampling(1))
    output = hand.runner.collect(second.step)
    assert output.token_ids.tolist() == [hand.expected([20, 21, 22, token])]


def test_the_newest_token_is_the_last_draft_that_counts(hand: Any) -> None:
    tokens = [20, 21, 22]
    right = hand.expected(tokens)
    drafts = [right, (hand.expected([*tokens, right]) + 1) % 48, 0]
    batch = hand.batch(
        (0, [4, 5], 0, [*tokens, *drafts]),
        logits_rows=np.array([2, 3, 4], np.int32),
        row_seqs=np.zeros(3, np.int32),
    )
    hand.runner.forward(batch)
    targets = np.array([drafts[0], drafts[1], -1], np.int32)
    hand.runner.sample(batch.step, hand.sampling(3, target_ids=targets))
    output = hand.runner.collect(batch.step)
    assert output.num_tokens.tolist() == [2]
    corrected = int(output.token_ids[1])
    assert corrected == hand.expected([*tokens, right])
    output = hand.run(hand.batch((0, [4, 5], 4, [ON_DEVICE])))
    assert output.token_ids.tolist() == [hand.expected([*tokens, right, corrected])]


def test_block_copies_come_before_the_forward(hand: Any) -> None:
    hand.run(hand.batch((0, [1], 0, [5, 6, 7, 8])))
    copy = BlockCopy(0, from_host=False, to_host=False, pairs=np.array([[1, 9]], np.int32))
    output = hand.run(hand.batch((1, [9, 2], 4, [9]), copies=(copy,)))
    assert output.token_ids.tolist() == [hand.expected([5, 6, 7, 8, 9])]


def test_a_batch_without_sequences_is_carried_out(hand: Any) -> None:
    output = hand.run(hand.batch(block_tables=(np.zeros((0, 0), np.int32),)))
    assert output.num_tokens.shape == output.token_ids.shape == (0,)


def test_reading_kv_that_was_never_written_is_a_fault(hand: Any) -> None:
    with pytest.raises(AssertionError, match="read before it is written"):
        hand.run(hand.batch((0, [7, 8], 5, [3])))


def test_arrays_must_rest_until_their_step_is_collected(hand: Any) -> None:
    batch = hand.batch((0, [1], 0, [5, 6]))
    hand.runner.forward(batch)
    hand.runner.sample(batch.step, hand.sampling(1))
    batch.token_ids[0] = 9
    with pytest.raises(AssertionError, match="changed before"):
        hand.runner.collect(batch.step)
    wishes = hand.sampling(2)
    guard = Unchanged(wishes)
    guard.check()
    wishes.temperature[1] = 1
    with pytest.raises(AssertionError, match="changed before"):
        guard.check()


def test_the_order_of_calls_is_checked(hand: Any) -> None:
    batch = hand.batch((0, [1], 0, [5, 6]))
    hand.runner.forward(batch)
    with pytest.raises(AssertionError, match="is queued before"):
        hand.runner.forward(hand.batch((1, [2], 0, [5, 6])))
    with pytest.raises(AssertionError, match="after its sample"):
        hand.runner.collect(batch.step)
    hand.runner.sample(batch.step, hand.sampling(1))
    with pytest.raises(AssertionError, match="once a step"):
        hand.runner.sample(batch.step, hand.sampling(1))
    with pytest.raises(AssertionError, match="in order"):
        hand.runner.collect(batch.step + 1)


def test_no_more_steps_are_in_flight_than_allowed(make_hand: Callable[..., Any]) -> None:
    hand = make_hand(max_in_flight="1")
    assert hand.runner.max_in_flight == 1
    batch = hand.batch((0, [1], 0, [5, 6]))
    hand.runner.forward(batch)
    hand.runner.sample(batch.step, hand.sampling(1))
    with pytest.raises(AssertionError, match="in flight"):
        hand.runner.forward(hand.batch((1, [2], 0, [5, 6])))


def test_a_row_behind_the_nan_token_is_not_finite(make_hand: Callable[..., Any]) -> None:
    hand = make_hand(nan_token="33")
    output = hand.run(hand.batch((0, [1], 0, [5, 6]), (1, [2, 3], 0, [5, 33, 6, 7, 8])))
    assert output.is_finite.tolist() == [True, False]
    output = hand.run(hand.batch((1, [2, 3], 5, [9])))
    assert output.is_finite.tolist() == [False]


def test_out_of_memory_drops_the_queue_and_keeps_the_kv_before(make_hand: Callable[..., Any]) -> None:
    hand = make_hand(out_of_memory_steps="2")
    hand.run(hand.batch((0, [1, 2], 0, [5, 6, 7, 8])))
    lost, behind = hand.batch((0, [1, 2], 4, [9])), hand.batch((1, [3], 0, [9]))
    hand.runner.forward(lost)
    hand.runner.sample(lost.step, hand.sampling(1))
    hand.runner.forward(behind)
    with pytest.raises(OutOfMemory, match="step 2"):
        hand.runner.collect(lost.step)
    output = hand.run(hand.batch((0, [1, 2], 4, [10])))
    assert output.token_ids.tolist() == [hand.expected([5, 6, 7, 8, 10])]


def test_a_lost_device_stays_lost(make_hand: Callable[..., Any]) -> None:
    hand = make_hand(device_lost_step="1")
    for _ in range(2):
        batch = hand.batch((0, [1], 0, [5, 6]))
        hand.runner._queue.clear()
        with pytest.raises(DeviceLost, match="was told to fail"):
            hand.run(batch)


def test_steps_take_the_time_that_was_asked_for_one_after_the_other(make_hand: Callable[..., Any]) -> None:
    hand = make_hand(step_ms="40")
    start = time.monotonic()
    first = hand.batch((0, [1], 0, [5, 6]))
    hand.runner.forward(first)
    hand.runner.sample(first.step, hand.sampling(1))
    second = hand.batch((1, [2], 0, [5, 6]))
    hand.runner.forward(second)
    output = hand.runner.collect(first.step)
    hand.runner.sample(second.step, hand.sampling(1))
    hand.runner.collect(second.step)
    assert time.monotonic() - start >= 0.08
    assert output.device_time_s == pytest.approx(0.04)


def test_memory_is_what_was_planned(hand: Any) -> None:
    assert hand.runner.memory() == hand.plan.parts


def test_kv_that_cannot_be_had_is_refused_with_both_numbers(hand: Any) -> None:
    plan = replace(hand.plan, num_blocks=(2**50,))
    runner = NullRunner(hand.spec, RunnerConfig(), plan, NullOptions())
    with pytest.raises(DoesNotFit, match=f"needs {2**50 * 16} bytes and [0-9]+ are free"):
        runner.allocate_kv()


def test_closing_twice_is_harmless_and_gives_the_memory_back(hand: Any) -> None:
    hand.runner.close()
    hand.runner.close()
    assert sum(part.size_bytes for part in hand.runner.memory()) == 0
