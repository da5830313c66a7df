"""The twins in pieces: what they take at once fits beside a model, and is the same in any pieces."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trivet.models.decoder import Decoder
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.collectives import Alone
from trivet.runners.sharded_weights import Linear, Plain, Vector
from trivet.runners.slices import Span
from trivet_cuda import twins
from trivet_cuda.cuda_ops import CudaOps
from trivet_cuda.memory_plan import Shape, activation_bytes, logits_bytes
from trivet_cuda.op_table import TWINS
from trivet_cuda.options import CudaOptions
from trivet_cuda.packed_weights import Grouped
from trivet_cuda.paged_kv import PagedKV
from trivet_cuda.step_view import StepView
from trivet_cuda.weight_kinds import GROUP_SIZE

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 2, 32, 16


class Live(TorchDispatchMode):
    """The most bytes that results held at once; what there was before does not count."""

    def __init__(self) -> None:
        super().__init__()
        self._now = self.peak = 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), counts=False)
        result = function(*args, **(kwargs or {}))
        self._note(result, counts=True)
        return result

    def _note(self, values: Any, *, counts: bool) -> None:
        for each in tree_leaves(values):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in self._seen:
                storage = each.untyped_storage()
                self._seen[storage._cdata] = storage.nbytes() if counts else 0
                self._now += self._seen[storage._cdata]
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._gone, storage._cdata)

    def _gone(self, key: int) -> None:
        self._now -= self._seen.pop(key)


def attended(name: str, length: int, num_tokens: int, window: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    blocks = -(-length // BLOCK_SIZE)
    shape = (1 + blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    table = (1 + torch.randperm(blocks, generator=generator)).int()[None]
    query = torch.randn((num_tokens, HEADS, HEAD_DIM), generator=generator)
    lengths = torch.tensor([length], dtype=torch.int32)
    if name == "decode":
        return twins.decode_attention(
            query, keys, values, None, None, table, lengths, 0.2, window, 0.0, 1, 90
        )
    starts, tiles = torch.tensor([0, num_tokens]).int(), torch.tensor([[0, 0]]).int()
    where = (table, starts, lengths, tiles)
    return twins.extend_attention(query, keys, values, None, None, *where, 0.2, window, 0.0, 90)


@pytest.mark.parametrize(("name", "num_tokens"), [("decode", 1), ("extend", 7)])
@pytest.mark.parametrize("window", [0, 300])
def test_pieces_of_keys_give_what_all_give_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, num_tokens: int, window: int
) -> None:
    monkeypatch.setattr(twins, "MAX_KEYS", 1 << 20)
    whole = attended(name, 1000, num_tokens, window)
    monkeypatch.setattr(twins, "MAX_KEYS", 64)
    torch.testing.assert_close(attended(name, 1000, num_tokens, window), whole)


@pytest.mark.parametrize(("name", "num_tokens"), [("decode", 1), ("extend", 7)])
def test_a_longer_context_takes_no_more_memory(name: str, num_tokens: int) -> None:
    peaks = []
    for length in (4 * twins.MAX_KEYS, 16 * twins.MAX_KEYS):
        held = 2 * 4 * (1 + length // BLOCK_SIZE) * BLOCK_SIZE * KV_HEADS * HEAD_DIM
        with Live() as live:
            attended(name, length, num_tokens)
        peaks.append(live.peak - held)
    assert peaks[1] < 1.5 * peaks[0], peaks


META = torch.device("meta")  # sizes without values
# Layers of Llama 3.1 8B: how many there are does not matter to a step's memory.
ATTENTION_8B = Attention(32, 8, 128, 128**-0.5, Rope(128))
SPEC_8B = ModelSpec("8B", 128256, 128256, 4096, 8192, (Layer(ATTENTION_8B, MLP(14336)),), (0, 0), Norm())
SHAPE_8B = Shape(
    dtype="bf16",
    kv_dtype="bf16",
    options=CudaOptions(),
    block_size=16,
    max_model_len=8192,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_logits_rows=256,
    num_ranks=1,
)


class GroupedPacker:
    """Matrices in 4 or 8 bits, by their shapes alone."""

    def __init__(self, is_4bit: bool) -> None:
        self._is_4bit = is_4bit

    def pack(self, name: str, parts: Sequence[Tensor], shard: str, bias: Tensor | None) -> Any:
        if parts[0].ndim == 1:
            return Vector(parts[0], None)
        rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
        matrix: Any = Plain(torch.empty((rows, columns), dtype=torch.bfloat16, device=META))
        if name not in ("embed", "head"):
            scales, offsets = torch.empty((2, columns // GROUP_SIZE, rows), dtype=torch.half, device=META)
            inner, dtype = (columns // 8, torch.int32) if self._is_4bit else (columns, torch.int8)
            weight = torch.empty((inner, rows), dtype=dtype, device=META)
            matrix = Grouped(weight, scales, offsets if self._is_4bit else None, TWINS, 90)
        return Linear(matrix, None, shard, Span(0, rows), rows, Alone())


class Shapes(dict[str, Tensor]):
    """`decoder.TensorSource` of tensors without values."""

    def tensor(self, name: str) -> Tensor:
        return self[name]


@pytest.mark.parametrize(
    ("num_tokens", "is_4bit", "has_qk_norm"), [(256, True, True), (2048, False, False), (16384, True, True)]
)
def test_a_step_of_twins_takes_no_more_than_is_planned_for_kernels(
    num_tokens: int, is_4bit: bool, has_qk_norm: bool
) -> None:
    """Each may stand for its kernel in a model of real size; attention, which reads lengths, is below."""
    attention = replace(ATTENTION_8B, qk_norm=Norm() if has_qk_norm else None)
    spec = replace(SPEC_8B, kinds=(Layer(attention, MLP(14336)),))
    shape = replace(SHAPE_8B, max_num_batched_tokens=num_tokens)
    table = replace(TWINS, extend_attention=lambda query, *_: torch.empty_like(query))
    ops = CudaOps(shape.dtype, shape.max_model_len, table, META, 90, 132)
    ops.packer = GroupedPacker(is_4bit)  # type: ignore[assignment]  # of which `pack` alone is called
    ops.cache = PagedKV(spec, 4, shape.block_size, shape.kv_dtype, META)
    decoder = Decoder(spec, ops)
    decoder.load(Shapes({name: torch.empty(size, device=META) for name, size in expected_tensors(spec)}))
    names = ("token_ids", "token_slots", "positions", "kv_slots", "adapters", "seq_lens", "query_starts")
    arrays = {name: torch.empty(num_tokens, dtype=torch.int32, device=META) for name in names}
    view = StepView.over(arrays | {"block_table": torch.empty((1, 4), dtype=torch.int32)}, 0, 1)
    view.query_lens = np.array([num_tokens], np.int32)
    with Live() as live, torch.inference_mode():
        decoder.forward(view.token_ids, view.positions, view)
    planned = activation_bytes(spec, shape, num_tokens) + logits_bytes(spec, shape)
    assert 0.05 * planned < live.peak <= planned, live.peak / planned


@pytest.mark.parametrize("name", ["decode", "extend"])
def test_attention_of_twins_takes_no_more_than_is_planned_for_kernels(name: str) -> None:
    """Of 8B's heads, beside the stream and the heads of the step."""
    num_tokens, length, dtype = 256 if name == "extend" else 1, 4096, torch.bfloat16
    cache = torch.zeros((1 + length // 16, 16, 8, 128), dtype=dtype)
    table = 1 + torch.arange(length // 16, dtype=torch.int32)[None]
    query, lengths = torch.zeros((num_tokens, 32, 128), dtype=dtype), torch.tensor([length]).int()
    settings = (128**-0.5, 0, 0.0)
    where = (query, cache, cache, None, None, table)
    with Live() as live:
        if name == "decode":
            twins.decode_attention(*where, lengths, *settings, 1, 90)
        else:
            starts, tiles = torch.tensor([0, num_tokens]).int(), torch.tensor([[0, 0]]).int()
            twins.extend_attention(*where, starts, lengths, tiles, *settings, 90)
    beside = num_tokens * (14 * 4096 + 3 * 2 * 6144)
    planned = activation_bytes(SPEC_8B, SHAPE_8B, num_tokens) + logits_bytes(SPEC_8B, SHAPE_8B)
    assert 0.01 * planned < live.peak + beside <= planned, (live.peak + beside) / planned


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "norm_rope", "swiglu", "group_matmul"])
def test_pieces_of_rows_give_what_all_give_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn((9, 64), generator=generator), torch.randn(64, generator=generator)
    words = torch.randint(-(1 << 31), 1 << 31, (8, 30), generator=generator).int()
    scales = torch.randn((2, 30), generator=generator).half()
    angles = torch.rand((9, 6), generator=generator)
    given: dict[str, tuple[Any, ...]] = {
        "rms_norm": (x, weight, 1e-5, torch.bfloat16),
        "add_rms_norm": (x, x + 1, weight, 1e-5, torch.bfloat16),
        "norm_rope": (
            x.view(9, 4, 16), 3, weight[:16], weight[16:32], 1e-5, angles.cos(), angles.sin(), True
        ),
        "swiglu": (x,),
        "group_matmul": (x, words, scales, scales, 90),
    }  # fmt: skip
    twin = getattr(twins, name)
    monkeypatch.setattr(twins, "MAX_VALUES", 1 << 30)
    whole = twin(*given[name])
    monkeypatch.setattr(twins, "MAX_VALUES", 2 * 64)
    torch.testing.assert_close(twin(*given[name]), whole)
