"""Attention by FlashInfer's interface: a stand-in computes what is planned, as its documentation says."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trivet.errors import BackendError, Unsupported
from trivet_cuda import twins
from trivet_cuda.flashinfer_attention import load_flashinfer, with_flashinfer
from trivet_cuda.op_cases import CaseMaker, ModelShape
from trivet_cuda.op_table import TWINS
from trivet_cuda.options import CudaOptions

CPU = torch.device("cpu")
ARCH = 90


class Wrapper:
    """What is used of BatchPrefillWithPagedKVCacheWrapper, in its order; computes in float32."""

    num_plans = 0

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        o_data_type: torch.dtype | None = None,
    ) -> None:
        type(self).num_plans += 1
        assert {each.dtype for each in (qo_indptr, paged_kv_indptr, paged_kv_indices)} == {torch.int32}
        assert causal
        self.queries, self.pages = qo_indptr.tolist(), paged_kv_indptr.tolist()
        self.indices, self.last = paged_kv_indices.long(), paged_kv_last_page_len.tolist()
        self.shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self.scale, self.window, self.soft_cap = sm_scale, window_left, logits_soft_cap
        assert (q_data_type, o_data_type) == (o_data_type, q_data_type)

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        num_qo_heads, num_kv_heads, _, page_size = self.shape
        out = torch.zeros_like(q)
        for seq, last in enumerate(self.last):
            pages = self.indices[self.pages[seq] : self.pages[seq + 1]]
            length = max(len(pages) - 1, 0) * page_size + last
            first, stop = self.queries[seq : seq + 2]
            keys, values = (
                cache.float()[pages].flatten(0, 1)[:length].repeat_interleave(num_qo_heads // num_kv_heads, 1)
                for cache in paged_kv_cache
            )
            at = torch.arange(length - (stop - first), length)[:, None]
            places = torch.arange(length)
            is_visible = places <= at
            if self.window >= 0:
                is_visible = is_visible & (places >= at - self.window)
            scores = torch.einsum("thd,nhd->htn", q[first:stop].float(), keys) * self.scale
            if self.soft_cap:
                scores = (scores / self.soft_cap).tanh() * self.soft_cap
            weights = scores.masked_fill(~is_visible, -torch.inf).softmax(-1).nan_to_num()
            out[first:stop] = torch.einsum("htn,nhd->thd", weights, values).to(q.dtype)
        return out


SHAPES = {
    "plain": ModelShape(6, 2, 64, 96, 80, 64),
    "float8": ModelShape(4, 4, 128, 96, 80, 64, kv_dtype="fp8_e4m3"),
    "window and soft cap": ModelShape(4, 2, 64, 96, 80, 64, window=100, soft_cap=3.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_planned_is_the_attention_of_the_twins(name: str) -> None:
    """Prompts, chunks over a prefix, decodes, and a sequence without keys."""
    table = with_flashinfer(TWINS, CPU, Wrapper)
    maker = CaseMaker(SHAPES[name], torch.bfloat16, CPU, ARCH)
    cases = [case for case in maker.cases() if "attention" in case.ops[0]]
    assert len(cases) == 4
    for case in cases:
        for found, wanted in zip(case.run(table), case.run(TWINS), strict=True):
            torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


def test_the_layers_of_a_step_share_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrapper, "num_plans", 0)
    table = with_flashinfer(TWINS, CPU, Wrapper)
    caches = [torch.randn(5, 16, 2, 64).half() for _ in range(2)]
    query, blocks = torch.randn(1, 4, 64).half(), torch.tensor([[1, 2]], dtype=torch.int32)
    for step in range(2):
        seq_lens = torch.tensor([17 + step], dtype=torch.int32)
        where = (None, None, blocks, seq_lens, 0.125)
        for layer in range(3):
            window = 8 if layer == 1 else 0
            found = table.decode_attention(query, *caches, *where, window, 0.0, 1, ARCH)
            wanted = twins.decode_attention(query, *caches, *where, window, 0.0, 1, ARCH)
            torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-3)
    assert Wrapper.num_plans == 2 * 2  # steps and kinds of layers


def test_flashinfer_that_is_not_installed_is_named() -> None:
    with pytest.raises(BackendError, match="pip install flashinfer-python"):
        load_flashinfer()


def test_nothing_is_captured_beside_it() -> None:
    assert not CudaOptions.parse({"attention": "flashinfer"}).captures
    with pytest.raises(Unsupported, match="not captured"):
        CudaOptions.parse({"attention": "flashinfer", "graphs": "on"})


@pytest.mark.skipif(
    "TRIVET_FLASHINFER_SOURCE" not in os.environ,
    reason="needs flashinfer's prefill.py, unpacked from its wheel: tests/run cuda flashinfer",
)
@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_the_stand_in_has_the_parameters_of_the_real_wrapper(method: str) -> None:
    """The package is 860 MB and imports NVIDIA's libraries: its source is parsed."""
    module = ast.parse(Path(os.environ["TRIVET_FLASHINFER_SOURCE"]).read_text())
    (wrapper,) = (
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == "BatchPrefillWithPagedKVCacheWrapper"
    )
    *_, function = (
        node for node in wrapper.body if isinstance(node, ast.FunctionDef) and node.name == method
    )
    real = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    ours: list[Any] = list(inspect.signature(getattr(Wrapper, method)).parameters.values())
    assert [each.name for each in ours] == [name for name in real if name in {each.name for each in ours}]
    by_place = 9 if method == "plan" else len(ours)  # those that are not given by name
    assert [each.name for each in ours[:by_place]] == real[:by_place]
