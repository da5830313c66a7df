"""What the torch-free half refuses and plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trivet.contract import DeviceInfo, MemoryPlan, RunnerConfig
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.weights.index import TensorInfo, WeightIndex
from trivet_ascend.backend import AscendBackend
from trivet_ascend.options import AscendOptions

GIB = 1 << 30
ATTENTION = Attention(8, 2, 64, 0.125, Rope(64))
LAYER = Layer(ATTENTION, MLP(1024))
SPEC = ModelSpec("TestForCausalLM", 70_000, 70_000, 512, 4096, (LAYER,), (0, 0), Norm())
NPU = DeviceInfo(
    kind="ascend",
    index=0,
    uid="0000:c1:00.0/0",
    name="Ascend 910B3",
    arch="A2",
    total_bytes=64 * GIB,
    free_bytes=60 * GIB,
    dtypes=frozenset({"f32", "f16", "bf16"}),
)


def index_of(spec: ModelSpec, kind: str = "bf16") -> WeightIndex:
    tensors = (
        TensorInfo(name, shape, kind if len(shape) > 1 else "f32", "file", 0, 1)
        for name, shape in expected_tensors(spec)
    )
    return WeightIndex(tuple(tensors))


def check(spec: ModelSpec = SPEC, device: DeviceInfo = NPU, kind: str = "bf16", **config: Any) -> None:
    AscendBackend().check(spec, index_of(spec, kind), RunnerConfig(**config), device)


def plan(spec: ModelSpec = SPEC, device: DeviceInfo = NPU, kind: str = "bf16", **config: Any) -> MemoryPlan:
    return AscendBackend().plan(spec, index_of(spec, kind), RunnerConfig(**config), [device])


def part(found: MemoryPlan, name: str) -> int:
    return sum(each.size_bytes for each in found.parts if each.name == name)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"kv_dtype": "int8"}, "kv_cache_dtype 'int8'"),
        ({"block_size": 16}, "block_size 16"),
        ({"tensor_parallel": 4}, "2 KV heads"),
        ({"dtype": "f64"}, "dtype 'f64'"),
        ({"options": {"graphs": "perhaps"}}, "'perhaps'; use off, on"),
        ({"options": {"weights": "w8a8"}, "dtype": "f32"}, "weights=w8a8"),
        ({"options": {"weights": "w4a16"}}, "q4_0 or q4_1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_setting_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        check(**config)


def test_a_chip_of_another_family_is_refused_with_its_name() -> None:
    with pytest.raises(Unsupported, match="family 310P"):
        check(device=replace(NPU, arch="310P"))


def test_a_model_without_a_spec_is_refused() -> None:
    with pytest.raises(Unsupported, match="transformers"):
        check(replace(SPEC, shapes_only=True))


@pytest.mark.parametrize(
    ("attention", "options", "because"),
    [
        (ATTENTION, {}, None),
        (replace(ATTENTION, head_dim=256), {}, "head size 256"),
        (replace(ATTENTION, head_dim=80), {"attention": "fused"}, None),
        (replace(ATTENTION, head_dim=72), {"attention": "fused"}, "head size 72"),
        (ATTENTION, {"attention": "gather"}, "asked for"),
        (replace(ATTENTION, window=100), {}, "window of 100"),
        (replace(ATTENTION, window=4096), {}, None),
        (replace(ATTENTION, soft_cap=30.0), {}, "soft cap"),
        (replace(ATTENTION, alibi=True), {}, "ALiBi"),
        (replace(ATTENTION, num_heads=130), {}, "130 query heads"),
        (replace(ATTENTION, num_heads=258, num_kv_heads=6), {}, "258 query heads"),
        (replace(ATTENTION, num_heads=1024, num_kv_heads=1024), {}, "1024 query heads over 1024 KV heads"),
    ],
)
def test_attention_is_gathered_where_the_operation_does_not_fit(
    attention: Attention, options: dict[str, str], because: str | None
) -> None:
    reason = AscendOptions.parse(options).why_gathered(attention, "bf16", 4096)
    assert (reason is None) == (because is None)
    assert because is None or because in (reason or "")


def test_the_plan_adds_up_and_blocks_have_128_tokens() -> None:
    found = plan()
    assert found.kv.block_size == 128
    assert part(found, "kv") == found.num_blocks[0] * found.kv.block_bytes
    assert found.kv.block_bytes == 128 * 2 * 2 * 2 * 64 * 2  # tokens, layers, K and V, heads, values, bytes
    assert found.num_blocks == (64 * 4096 // 128 + 1,)
    assert found.total_bytes < NPU.free_bytes


def test_weights_are_planned_by_their_kind() -> None:
    values = dict(expected_tensors(SPEC))
    plain = sum(2 * _size(shape) for shape in values.values())
    assert part(plan(), "weights") == plain
    tied = part(plan(replace(SPEC, tie_embeddings=True)), "weights")
    assert tied == plain - 2 * 70_000 * 512, "one table serves both"
    quantised = part(plan(options={"weights": "w8a16"}), "weights")
    matrices = sum(
        _size(shape) for name, shape in values.items() if len(shape) > 1 and name != "embed.weight"
    )
    scales = sum(shape[0] for name, shape in values.items() if len(shape) > 1 and name != "embed.weight")
    assert quantised == plain - matrices + 2 * scales


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for count in shape:
        size *= count
    return size


def test_each_of_two_ranks_takes_half_of_the_matrices_and_of_the_kv() -> None:
    one, two = plan(), plan(tensor_parallel=2)
    norms = 2 * 512 * (2 * 2 + 1)
    assert part(two, "weights") == (part(one, "weights") - norms) // 2 + norms
    assert two.kv.block_bytes == one.kv.block_bytes // 2
    assert part(two, "collectives") > 0


def test_what_does_not_fit_is_refused_with_both_numbers_and_a_remedy() -> None:
    small = replace(NPU, total_bytes=GIB, free_bytes=GIB)
    with pytest.raises(DoesNotFit, match=r"needs [\d.]+ GiB .* [\d.]+ GiB .* lower max_model_len to"):
        plan(device=small, max_model_len=1 << 20)
    with pytest.raises(DoesNotFit, match="is 3; raise it, or lower max_model_len to 256"):
        plan(num_blocks=3, max_model_len=1000)
    with pytest.raises(DoesNotFit, match="use more devices"):
        plan(device=replace(NPU, total_bytes=GIB // 2, free_bytes=GIB // 2))


def test_a_layers_keys_stay_below_two_to_the_31_elements() -> None:
    """Where memory and sequences would take more, and as a refusal where more was asked for."""
    vast = replace(NPU, total_bytes=1 << 42, free_bytes=1 << 42)
    found = plan(replace(SPEC, max_position=1 << 22), vast, max_num_seqs=256)
    elements = found.num_blocks[0] * 128 * 2 * 64
    assert elements < 1 << 31 <= elements + 128 * 2 * 64
    with pytest.raises(DoesNotFit, match=r"2\^31 - 1 elements.*use at most 131071"):
        plan(device=vast, num_blocks=131_072)


def test_an_unasked_length_is_lowered_to_what_fits() -> None:
    found = plan(replace(SPEC, max_position=1 << 22), replace(NPU, total_bytes=2 * GIB, free_bytes=2 * GIB))
    assert 128 <= found.max_model_len < 1 << 22
    assert (found.num_blocks[0] - 1) * 128 >= found.max_model_len


def test_graphs_are_planned_when_they_are_asked_for() -> None:
    assert part(plan(), "graphs") == 0
    assert part(plan(options={"graphs": "on"}, max_num_seqs=20), "graphs") == 6 * (64 << 20)  # 1 2 4 8 16 20


@pytest.mark.parametrize(
    ("name", "arch", "bytes_per_s"),
    [
        ("Ascend 910B3", "A2", 1.6e12),
        ("Ascend 910B4", "A2", 0.8e12),
        ("Ascend 910", "A3", 1.6e12),
        ("Ascend 910B4-1", "A2", None),
        ("Ascend 310P3", "310P", None),
    ],
)
def test_the_bandwidth_of_known_chips_is_told(name: str, arch: str, bytes_per_s: float | None) -> None:
    assert AscendBackend().bandwidth(replace(NPU, name=name, arch=arch)) == bytes_per_s


def test_the_plan_takes_the_device_with_the_least_memory() -> None:
    full = replace(NPU, free_bytes=2 * GIB)
    found = AscendBackend().plan(SPEC, index_of(SPEC), RunnerConfig(tensor_parallel=2), [NPU, full])
    assert found.total_bytes <= 2 * GIB
