"""Each rule that a batch can break is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trivet_null.batch_checks import check_batch


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


GOOD = ((2, [1], 1, [9]), (0, [2, 3], 4, [5, 6]))

BROKEN: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "int32": (GOOD, {"slots": np.array([2, 0], np.int64)}),
    "C-contiguous": (GOOD, {"positions": np.array([1, 0, 4, 0, 5, 0], np.int32)[::2]}),
    "sorted by query length": ((GOOD[1], GOOD[0]), {}),
    "a slot is used once": ((GOOD[0], (2, [2, 3], 4, [5, 6])), {}),
    "slots are in range": (GOOD, {"slots": int32(2, 4)}),
    "token ids exist": (GOOD, {"token_ids": int32(9, 50, 6)}),
    "seq_lens are exact": (GOOD, {"seq_lens": int32(2, 7)}),
    "positions end at them": (GOOD, {"positions": int32(1, 4, 6)}),
    "no sequence owns block 0": (((2, [1], 1, [9]), (0, [2, 0], 4, [5, 6])), {}),
    "block ids are in range": (((2, [1], 1, [9]), (0, [2, 20], 4, [5, 6])), {}),
    "wide enough": (((2, [1], 1, [9]), (0, [2], 4, [5, 6])), {}),
    "written twice": (((2, [2], 1, [9]), (0, [2], 0, [5, 6])), {}),
    "logits_rows ascend": (GOOD, {"logits_rows": int32(2, 0), "row_seqs": int32(1, 0)}),
    "row_seqs name the owners": (GOOD, {"row_seqs": int32(0, 0)}),
    "every sequence has a token": (
        ((2, [1], 1, []), GOOD[1]),
        {"logits_rows": int32(1), "row_seqs": int32(1)},
    ),
    "starts with 0": (GOOD, {"query_start_loc": int32(1, 2, 3)}),
}


def test_a_good_batch_passes(hand: Any) -> None:
    check_batch(hand.batch(*GOOD), hand.plan, 4, 50)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_named(hand: Any, rule: str) -> None:
    sequences, changes = BROKEN[rule]
    with pytest.raises(AssertionError, match=rule):
        check_batch(hand.batch(*sequences, **changes), hand.plan, 4, 50)
