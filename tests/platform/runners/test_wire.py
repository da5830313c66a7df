"""A step as one buffer, and what is refused there."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from trivet.contract import (
    Batch,
    BlockCopy,
    DeviceInfo,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    RunnerConfig,
)
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work, arrays_of, build_batch, build_sampling
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, MoE, Norm, Rope
from trivet.runners.rank_order import RankOrder
from trivet.runners.slices import Rank
from trivet.runners.wire import flatten, restore, round_trip
from trivet.weights.index import TensorInfo, WeightIndex


def a_batch() -> Batch:
    work = Work(DrivenSequence([5, 6, 7], slot=2, blocks=[[4], [9]]), 3, (2,), (RowSampling(),))
    copies = (BlockCopy(1, from_host=False, to_host=True, pairs=np.array([[3, 4]], np.int32)),)
    batch, _ = build_batch(17, [work], lambda size: np.zeros(size, np.int32), copies, num_groups=2)
    return batch


def test_a_batch_comes_back_equal() -> None:
    batch = a_batch()
    back = round_trip(batch)
    assert (back.step, back.adapters, back.copies[0].to_host) == (17, None, True)
    assert len(back.block_tables) == 2
    for before, after in zip(arrays_of(batch), arrays_of(back), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_a_sampling_comes_back_equal() -> None:
    row = RowSampling(temperature=0.5, edits=((3, 2.0, -1.0),), allowed=(1, 40))
    sampling = build_sampling([RowSampling(), row], 70, 3, np.array([5, 6], np.int32))
    back = round_trip(sampling)
    assert back.num_logprobs == 3
    for before, after in zip(arrays_of(sampling), arrays_of(back), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_buffer_alone_is_enough() -> None:
    batch = a_batch()
    buffer = bytearray(flatten(batch))
    batch.token_ids.fill(0)
    assert restore(buffer).token_ids.tolist() == [5, 6, 7]


@pytest.mark.parametrize("stranger", [[1, 2], object(), np.array([None])], ids=["list", "object", "objects"])
def test_anything_but_arrays_and_plain_values_is_refused_by_field(stranger: object) -> None:
    with pytest.raises(TypeError, match=r"Batch\.embeds"):
        flatten(replace(a_batch(), embeds=stranger))


def test_mask_bits_stand_where_the_contract_says() -> None:
    sampling = build_sampling([RowSampling(), RowSampling(allowed=(0, 33, 69))], 70)
    assert sampling.mask_rows is not None
    assert sampling.mask_bits is not None
    assert sampling.mask_rows.tolist() == [1]
    assert sampling.mask_bits.tolist() == [[1, 2, 1 << 5]]


def test_what_a_rank_is_started_with_comes_back_equal() -> None:
    """Dataclasses inside dataclasses, a set, an enum that is compared by identity, a choice of two kinds."""
    layers = (
        Layer(Attention(8, 4, 64, 0.125, Rope(64, params=(1.0, 4.0))), MLP(96)),
        Layer(Attention(8, 4, 64, 0.125, None, window=128), MoE(8, 2, 32)),
    )
    spec = ModelSpec("Test", 100, 100, 512, 4096, layers, (0, 1, 0), Norm("layer"))
    kv = KVCacheSpec(128, (KVGroup(KVKind.FULL, (0, 1), "bf16", 1024),))
    plan = MemoryPlan(kv, (20,), 0, (MemoryPart("kv", 7),), 2048, 4096)
    config = RunnerConfig(options={"attention": "fused"}, memory_fraction=0.5)
    device = DeviceInfo("x", 1, "uid", "name", "arch", 1 << 40, 5, frozenset({"f32", "bf16"}), (("a", "1"),))
    index = WeightIndex((TensorInfo("w", (3, 4), "q4_0", "/file", 5, 6, 7),))
    order = RankOrder("module:function", Rank(1, 2), "/meeting", spec, config, plan, (device,))
    assert RankOrder(*restore(order.as_message())) == order
    assert restore(order.as_message())[5].kv.groups[0].kind is KVKind.FULL
    assert restore(flatten(("load", index))) == ("load", index)


def test_arrays_that_come_back_can_be_written() -> None:
    back = restore(flatten(a_batch()))
    back.token_ids[0] = 1


@pytest.mark.parametrize(
    "message",
    [
        msgspec.msgpack.encode(msgspec.msgpack.Ext(2, msgspec.msgpack.encode(["Popen", "true"]))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"\x90")),
        b"\xc1",
    ],
    ids=["a class that is none of ours", "an unknown extension", "no MessagePack"],
)
def test_what_flatten_does_not_make_is_refused(message: bytes) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        restore(message)
