"""What the native runner takes on, and in which form weights are packed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet_cpu.native_library import Kind
from trivet_cpu.native_plan import AS_STORED, kind_of, packed_bytes, unknown_part

LAYER = Layer(Attention(32, 8, 64, 0.125, Rope(64)), MLP(8192))
SPEC = ModelSpec("test", 1000, 1000, 2048, 4096, (LAYER,), (0, 0), Norm())


def _with(attention: dict[str, object] | None = None, **layer: object) -> ModelSpec:
    changed = replace(LAYER, attention=replace(LAYER.attention, **(attention or {})), **layer)  # type: ignore[arg-type]
    return replace(SPEC, kinds=(LAYER, changed), layers=(0, 1))


def test_a_llama_is_known() -> None:
    assert unknown_part(SPEC, 16) is None
    known = _with({"window": 24, "qkv_bias": True, "qk_norm": Norm()}, mlp=MLP(64, "gelu_tanh", gated=False))
    assert unknown_part(known, 48) is None


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (replace(SPEC, shapes_only=True), "no spec"),
        (replace(SPEC, norm=Norm("layer")), "norm 'layer'"),
        (replace(SPEC, logits_soft_cap=30.0), "soft cap on logits"),
        (replace(SPEC, hidden_size=2040), "hidden size 2040"),
        (_with(order="sandwich"), "order 'sandwich'"),
        (_with({"alibi": True}), "ALiBi"),
        (_with({"soft_cap": 50.0}), "soft cap on attention"),
        (_with({"head_dim": 72}), "head_dim 72"),
        (_with({"rope": Rope(64, interleaved=True)}), "interleaved"),
        (_with({"qk_norm": Norm("layer")}), "norm 'layer' of queries"),
    ],
)
def test_what_the_kernels_do_not_compute_is_named(spec: ModelSpec, named: str) -> None:
    assert named in (unknown_part(spec, 16) or "")


def test_blocks_have_to_be_whole_vectors() -> None:
    assert "block_size 24" in (unknown_part(SPEC, 24) or "")


@pytest.mark.parametrize(
    ("file_format", "dtype", "kind"),
    [
        ("q4_1", "f32", Kind.F32),
        ("q4_1", "bf16", Kind.BF16),
        ("q4_k", AS_STORED, Kind.Q4),
        ("q8_0", AS_STORED, Kind.Q8),
        ("q6_k", AS_STORED, Kind.Q8),
        ("f16", AS_STORED, Kind.BF16),
    ],
)
def test_the_dtype_says_how_a_stored_format_is_packed(file_format: str, dtype: str, kind: Kind) -> None:
    assert kind_of(file_format, dtype, "bf16") is kind


def test_packed_sizes_count_padding_scales_and_minima() -> None:
    assert packed_bytes(Kind.Q4, 33, 64) == 64 * 32 + 64 * 2 * 2 * 2
    assert packed_bytes(Kind.Q8, 1, 1) == 32 * (32 + 2)
    assert packed_bytes(Kind.F32, 32, 40) == 32 * 64 * 4


def test_the_native_runner_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'gguf'): sys.modules[name] = None\n"
        "from trivet.contract import RunnerConfig\n"
        "from trivet.models.model_files import open_model\n"
        "from trivet.demo_model import find_demo_model\n"
        "from trivet_cpu.backend import CpuBackend\n"
        "backend, files = CpuBackend(), open_model(find_demo_model())\n"
        "config = RunnerConfig(max_model_len=64, max_num_seqs=2, options={'kernels': 'native'})\n"
        "devices = backend.probe(1.0)\n"
        "plan = backend.plan(files.spec, files.weights, config, devices)\n"
        "runner = backend.create_runner(files.spec, config, plan, devices)\n"
        "runner.load(files.weights, lambda done, total: None)\n"
        "runner.allocate_kv(); runner.warm_up(); runner.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
