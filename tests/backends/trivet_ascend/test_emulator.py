"""The emulator refuses what torch-npu's documents forbid; each rule is broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from trivet_ascend_emulated.operators import define_operators

BLOCK, HEADS, KV_HEADS, SIZE = 128, 4, 2, 64


@pytest.fixture(autouse=True, scope="module")
def emulator() -> None:
    define_operators()


def attention(**changes: Any) -> dict[str, Any]:
    """A sound call: a decode of 130 keys and a prompt of 3."""
    cache = torch.zeros(8, BLOCK, KV_HEADS * SIZE, dtype=torch.bfloat16)
    return {
        "query": torch.zeros(4, HEADS, SIZE, dtype=torch.bfloat16),
        "key": cache,
        "value": cache.clone(),
        "atten_mask": torch.ones(2048, 2048, dtype=torch.int8).triu(1),
        "actual_seq_lengths": [1, 4],
        "actual_seq_lengths_kv": [130, 3],
        "block_table": torch.tensor([[1, 2], [3, 0]], dtype=torch.int32),
        "num_heads": HEADS,
        "scale": 0.125,
        "input_layout": "TND",
        "num_key_value_heads": KV_HEADS,
        "sparse_mode": 3,
        "block_size": BLOCK,
        **changes,
    }


def attend(arguments: dict[str, Any]) -> Tensor:
    order = ("query", "key", "value")
    rest = {name: value for name, value in arguments.items() if name not in order}
    out: Tensor = torch.ops.npu.npu_fused_infer_attention_score(*(arguments[name] for name in order), **rest)[
        0
    ]
    return out


def test_a_sound_call_passes() -> None:
    assert attend(attention()).shape == (4, HEADS, SIZE)


@pytest.mark.parametrize(
    "changes",
    [
        {"query": torch.zeros(4, HEADS, SIZE)},
        {"query": torch.zeros(4, SIZE, HEADS, dtype=torch.bfloat16).transpose(1, 2)},
        {"query": torch.zeros(4, HEADS, 72, dtype=torch.bfloat16)},
        {"block_table": torch.tensor([[1, 2], [3, 0]])},
        {"block_table": torch.tensor([[1, 9], [3, 0]], dtype=torch.int32)},
        {"block_table": torch.tensor([[1], [3]], dtype=torch.int32)},
        {"actual_seq_lengths": [1, 3]},
        {"actual_seq_lengths_kv": [130, 133, 1]},
        {"actual_seq_lengths": [1, 3, 4], "actual_seq_lengths_kv": [130, 133, 136]},
        {"actual_seq_lengths_kv": [130, 2]},
        {"block_size": 16},
        {"atten_mask": None},
        {"atten_mask": torch.zeros(512, 512, dtype=torch.int8)},
        {"atten_mask": torch.zeros(2048, 2048, dtype=torch.int8)},
        {"atten_mask": torch.ones(2048, 2048, dtype=torch.int8).tril()},
        {"atten_mask": torch.ones(2048, 2048, dtype=torch.int8).triu(2)},
        {"atten_mask": torch.ones(2048, 2048).triu(1)},
        {"key": torch.zeros(8, BLOCK, KV_HEADS * SIZE).bfloat16().transpose(0, 1).transpose(0, 1)[::2]},
        {"value": torch.zeros(9, BLOCK, KV_HEADS * SIZE).bfloat16()},
        {"block_table": torch.tensor([[1, 3], [2, 0]], dtype=torch.int32).t()},
        {"actual_seq_lengths_kv": None},
        {"block_table": None},
        {"num_key_value_heads": 3},
        {"sparse_mode": 0},
        {"sparse_mode": 4, "pre_tokens": 24},
        {"input_layout": "BSH"},
        {"num_heads": 8},
        {"antiquant_mode": 1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_wrong_call_of_attention_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        attend(attention(**changes))


def test_an_unknown_keyword_is_refused_by_the_schema() -> None:
    with pytest.raises(RuntimeError, match="num_head"):
        attend(attention(num_head=4))


def write(slots: list[int], dtype: torch.dtype = torch.bfloat16, **keywords: Any) -> None:
    key = torch.zeros(len(slots), KV_HEADS, SIZE, dtype=dtype)
    caches = [torch.zeros(2, BLOCK, KV_HEADS, SIZE, dtype=torch.bfloat16) for _ in range(2)]
    mapping = torch.tensor(slots, dtype=torch.int32)
    torch.ops.npu.npu_scatter_pa_kv_cache(key, key, *caches, mapping, **{"cache_mode": "Norm", **keywords})


def _strided_write() -> tuple[Tensor, ...]:
    key = torch.zeros(KV_HEADS, 1, SIZE).bfloat16().expand(KV_HEADS, 2, SIZE).transpose(0, 1)
    caches = [torch.zeros(2, BLOCK, KV_HEADS, SIZE).bfloat16() for _ in range(2)]
    return key, key, *caches, torch.tensor([1, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: write([3, 3]),
        lambda: write([-1]),
        lambda: write([2 * BLOCK]),
        lambda: write([1], torch.float16),
        lambda: write([1], cache_mode="PA_NZ"),
        lambda: torch.ops.npu.npu_scatter_pa_kv_cache(*_strided_write(), cache_mode="Norm"),
    ],
    ids=["twice", "padding", "outside", "dtype", "layout", "strides"],
)
def test_a_wrong_write_is_refused(call: Callable[[], None]) -> None:
    write([0, 200])
    with pytest.raises(AssertionError):
        call()


def test_float16_scales_of_int8_products_are_refused() -> None:
    """The wheel's own shape function lets them pass (vllm-ascend #12907)."""
    x, weight = torch.ones(2, 32, dtype=torch.int8), torch.ones(32, 8, dtype=torch.int8)
    with pytest.raises(AssertionError):
        torch.ops.npu.npu_quant_matmul(
            x, weight, torch.ones(8).half(), pertoken_scale=torch.ones(2), output_dtype=torch.float16
        )
    with pytest.raises(AssertionError):
        torch.ops.npu.npu_quant_matmul(x, weight, torch.ones(8), pertoken_scale=torch.ones(2))


def test_more_than_65535_columns_are_refused() -> None:
    weight = torch.ones(65_536, 32, dtype=torch.int8).t()
    scales = torch.ones(65_536).bfloat16()
    with pytest.raises(AssertionError):
        torch.ops.npu.npu_weight_quant_batchmatmul(torch.ones(1, 32).bfloat16(), weight, scales)


def test_cosines_beyond_one_are_refused() -> None:
    x, wide = torch.ones(1, 2, 4, 64).bfloat16(), torch.full((1, 2, 1, 64), 1.25).bfloat16()
    with pytest.raises(AssertionError, match=r"\[-1, 1\]"):
        torch.ops.npu.npu_rotary_mul(x, wide, wide)
