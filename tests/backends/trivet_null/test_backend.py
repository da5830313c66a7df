"""The planning half."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from trivet.contract import AdapterSlots, DeviceInfo, MemoryPlan, RunnerConfig
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.plugins import load_plugins
from trivet.weights.index import WeightIndex
from trivet_null.backend import NullBackend, NullOptions

NO_WEIGHTS = WeightIndex(())


@pytest.fixture
def spec() -> ModelSpec:
    attention = Attention(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=Rope(dim=8))
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=50,
        num_tokens=48,
        hidden_size=8,
        max_position=1000,
        kinds=(Layer(attention, MLP(8)),),
        layers=(0, 0, 0),
        norm=Norm(),
    )


def device() -> DeviceInfo:
    (found,) = NullBackend().probe(1.0)
    return found


def plan(spec: ModelSpec, **config: Any) -> MemoryPlan:
    return NullBackend().plan(spec, NO_WEIGHTS, RunnerConfig(**config), [device()])


def test_it_is_found_by_its_name() -> None:
    assert load_plugins().backend("null").name == "null"


def test_it_assumes_what_other_backends_do_not(spec: ModelSpec) -> None:
    planned = plan(spec)
    assert planned.kv.block_size == 128
    assert NullOptions.parse({}).max_in_flight == 2


def test_the_default_plan_has_room_for_every_sequence_at_full_length(spec: ModelSpec) -> None:
    planned = plan(spec, max_num_seqs=3)
    assert planned.max_model_len == 1000
    assert planned.num_blocks == (1 + 3 * 8,)
    assert {part.name: part.size_bytes for part in planned.parts}["kv"] == 25 * 128 * 4


def test_few_blocks_shorten_the_context_unless_it_was_asked_for(spec: ModelSpec) -> None:
    assert plan(spec, num_blocks=3).max_model_len == 256
    with pytest.raises(DoesNotFit, match="300 does not fit 3 KV blocks of 128 tokens, which hold 256"):
        plan(spec, num_blocks=3, max_model_len=300)
    with pytest.raises(DoesNotFit):
        plan(spec, num_blocks=1)


def test_a_plan_beyond_the_memory_is_refused_with_both_numbers(spec: ModelSpec) -> None:
    small = replace(device(), free_bytes=1000)
    with pytest.raises(DoesNotFit, match="and 1000 may be used"):
        NullBackend().plan(spec, NO_WEIGHTS, RunnerConfig(), [small])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"options": {"stepms": "3"}}, "'stepms' is unknown .* step_ms"),
        ({"options": {"step_ms": "fast"}}, "not a number"),
        ({"options": {"max_in_flight": "3"}}, "1 or 2"),
        ({"dtype": "int4"}, "'int4' is unknown"),
        ({"kv_dtype": "int4"}, "kv_cache_dtype 'int4' is unknown; use auto, bfloat16"),
        ({"tensor_parallel": 2}, "tensor_parallel_size is 2"),
        ({"block_size": 0}, "block_size is 0"),
        ({"adapters": AdapterSlots(1, 8, ("q",))}, r"takes no adapters \(LoRA\)"),
    ],
)
def test_what_it_cannot_do_is_refused(spec: ModelSpec, config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        NullBackend().check(spec, NO_WEIGHTS, RunnerConfig(**config), device())


def test_neither_half_imports_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import trivet_null, trivet_null.runner, trivet_null.backend"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
