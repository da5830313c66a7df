"""The torch runner's memory plan, and the checks of the CPU backend: arithmetic, on made-up devices."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from trivet.contract import DeviceInfo, MemoryPlan, RunnerConfig
from trivet.errors import DoesNotFit, Unsupported, WeightsError
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.weights.index import TensorInfo, WeightIndex
from trivet_cpu.backend import CpuBackend, resolve_dtype, resolve_shape
from trivet_cpu.memory_plan import kv_cache_spec
from trivet_cpu.planner import DEFAULT_KV_BYTES, MARGIN_BYTES

GIB = 1 << 30
# The shape of a Llama of 1.2 billion parameters.
LAYER = Layer(Attention(32, 8, 64, 0.125, Rope(64)), MLP(8192))
SPEC = ModelSpec("test", 128_256, 128_256, 2048, 131_072, (LAYER,), (0,) * 16, Norm(), tie_embeddings=True)
NUM_PARAMETERS = sum(math.prod(shape) for _, shape in expected_tensors(SPEC))
TOKEN_BYTES = 16 * 2 * 8 * 64 * 2  # of KV in bf16
BACKEND = CpuBackend()
TORCH = {"kernels": "torch"}


def _index(spec: ModelSpec = SPEC) -> WeightIndex:
    return WeightIndex(
        tuple(
            TensorInfo(name, shape, "bf16", "model.safetensors", 0, 2 * math.prod(shape))
            for name, shape in expected_tensors(spec)
        )
    )


WEIGHTS = _index()


def _device(free: float = 64 * GIB, total: float = 64 * GIB, arch: str = "x86-64 avx512_bf16") -> DeviceInfo:
    return DeviceInfo("cpu", 0, "host", "CPU", arch, int(total), int(free), frozenset({"f32", "bf16"}))


def _plan(device: DeviceInfo | None = None, **config: object) -> MemoryPlan:
    settings = RunnerConfig(options=TORCH, **config)  # type: ignore[arg-type]
    return BACKEND.plan(SPEC, WEIGHTS, settings, [device or _device()])


def _parts(plan: MemoryPlan) -> dict[str, int]:
    return {part.name: part.size_bytes for part in plan.parts}


def test_weights_are_counted_with_the_tied_head_that_is_packed_once_more() -> None:
    tied = SPEC.vocab_size * SPEC.hidden_size
    norms = (2 * 16 + 1) * SPEC.hidden_size
    assert _parts(_plan())["weights"] == 2 * (NUM_PARAMETERS + tied) + 2 * norms


def test_float32_weights_take_twice_the_bytes() -> None:
    bf16, f32 = (_parts(_plan(dtype=dtype))["weights"] for dtype in ("bf16", "f32"))
    assert f32 == pytest.approx(2 * bf16, rel=1e-3)


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    plan = _plan(num_blocks=100, block_size=32)
    assert plan.kv.block_bytes == 32 * TOKEN_BYTES
    assert _parts(plan)["kv"] == 100 * 32 * TOKEN_BYTES


def test_kv_may_be_kept_in_another_dtype() -> None:
    assert _plan(kv_dtype="f32").kv.groups[0].token_bytes == 2 * TOKEN_BYTES


def test_the_default_cache_is_capped() -> None:
    kv = _parts(_plan(max_model_len=4096))["kv"]
    assert DEFAULT_KV_BYTES - 16 * TOKEN_BYTES < kv <= DEFAULT_KV_BYTES


def test_the_default_cache_never_exceeds_what_the_sequences_can_use() -> None:
    assert _plan(max_model_len=160, max_num_seqs=3).num_blocks == (3 * 10 + 1,)


def test_the_default_cache_takes_a_part_of_what_is_free() -> None:
    device = _device(free=5 * GIB)
    plan = _plan(device, max_model_len=4096, max_num_seqs=64)
    others = plan.total_bytes - _parts(plan)["kv"] + MARGIN_BYTES
    assert _parts(plan)["kv"] == pytest.approx((device.free_bytes - others) / 2, rel=0.01)


def test_the_cache_grows_beyond_the_cap_to_hold_one_whole_sequence() -> None:
    plan = _plan()
    assert plan.max_model_len == SPEC.max_position
    assert plan.num_blocks == (SPEC.max_position // 16 + 1,)
    assert _parts(plan)["kv"] > DEFAULT_KV_BYTES


def test_a_stated_share_is_used_in_full_and_not_exceeded() -> None:
    plan = _plan(memory_fraction=0.25, max_model_len=8192)
    used = plan.total_bytes + MARGIN_BYTES
    assert 16 * GIB - 2 * plan.kv.block_bytes < used <= 16 * GIB


def test_a_stated_share_never_exceeds_what_is_free() -> None:
    device = _device(free=8 * GIB)
    plan = _plan(device, memory_fraction=0.9, max_model_len=8192)
    assert plan.total_bytes + MARGIN_BYTES <= device.free_bytes


def test_a_plan_for_all_that_is_free_still_fits_when_its_engine_comes_to_it() -> None:
    plan = _plan(_device(free=8 * GIB), memory_fraction=0.9, max_model_len=8192)
    (num_blocks,) = plan.num_blocks
    less = _device(free=8 * GIB - (400 << 20))  # the engine's own process, and what others took meanwhile
    again = _plan(less, memory_fraction=0.9, max_model_len=8192, num_blocks=num_blocks)
    assert again.num_blocks == plan.num_blocks


def test_the_length_is_lowered_to_what_fits_if_nobody_asked_for_it() -> None:
    device = _device(free=6 * GIB)
    plan = _plan(device)
    assert 0 < plan.max_model_len < SPEC.max_position
    assert plan.num_blocks[0] - 1 == plan.max_model_len // 16
    assert plan.total_bytes + MARGIN_BYTES <= device.free_bytes
    longer = RunnerConfig(max_model_len=plan.max_model_len + 16, options=TORCH)
    with pytest.raises(DoesNotFit):
        BACKEND.plan(SPEC, WEIGHTS, longer, [device])


def test_a_length_that_was_asked_for_is_refused_with_the_largest_that_fits() -> None:
    device = _device(free=6 * GIB)
    fitting = _plan(device).max_model_len
    with pytest.raises(DoesNotFit, match=rf"needs \d+\.\d+ GiB.*6\.00 GiB.*max_model_len to {fitting}$"):
        _plan(device, max_model_len=131_072)


def test_a_share_that_is_too_small_says_which_would_do() -> None:
    with pytest.raises(DoesNotFit, match=r"raise gpu_memory_utilization to (0\.\d+)") as refusal:
        _plan(memory_fraction=0.05, max_model_len=4096)
    share = float(str(refusal.value).split("gpu_memory_utilization to ")[1].split(" ")[0])
    assert _plan(memory_fraction=share, max_model_len=4096).max_model_len == 4096


def test_bf16_is_named_where_only_its_weights_fit() -> None:
    with pytest.raises(DoesNotFit, match="set dtype to bfloat16"):
        _plan(_device(free=4.5 * GIB), dtype="f32")


def test_a_model_that_cannot_fit_says_how_much_is_missing() -> None:
    with pytest.raises(DoesNotFit, match=r"free \d+\.\d+ GiB of memory or choose a smaller model"):
        _plan(_device(free=2 * GIB))


def test_many_more_threads_than_cpus_are_refused() -> None:
    usable = len(os.sched_getaffinity(0))
    BACKEND.check(SPEC, WEIGHTS, RunnerConfig(options={"num_threads": str(8 * usable)}), _device())
    config = RunnerConfig(options={"num_threads": str(8 * usable + 1)})
    with pytest.raises(Unsupported, match=f"on {usable} CPUs would only wait; use at most {usable}"):
        BACKEND.check(SPEC, WEIGHTS, config, _device())


def test_a_swap_space_that_is_too_large_says_which_would_do() -> None:
    with pytest.raises(DoesNotFit, match="lower swap_space to ") as refusal:
        _plan(swap_bytes=9999 << 30)
    room = float(str(refusal.value).rsplit(" ", 1)[1])
    assert _plan(swap_bytes=int(room * GIB)).num_host_blocks > 0


def test_more_sequences_than_fit_are_refused_with_a_number_that_fits() -> None:
    with pytest.raises(DoesNotFit, match="lower max_num_seqs to ") as refusal:
        _plan(max_num_seqs=1_000_000_000)
    assert _plan(max_num_seqs=int(str(refusal.value).rsplit(" ", 1)[1])).num_blocks


def test_a_number_of_blocks_is_taken_as_given_and_bounds_the_length() -> None:
    plan = _plan(num_blocks=20)
    assert (plan.num_blocks, plan.max_model_len) == ((20,), 19 * 16)


def test_a_length_beyond_the_given_blocks_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        DoesNotFit, match=r"max_model_len 1000 needs 64 KV blocks.*num_gpu_blocks_override is 20.*to 304"
    ):
        _plan(num_blocks=20, max_model_len=1000)


def test_more_blocks_than_fit_are_refused_with_the_number_that_fits() -> None:
    device = _device(free=6 * GIB)
    with pytest.raises(DoesNotFit, match="lower num_gpu_blocks_override to") as refusal:
        _plan(device, num_blocks=100_000, max_model_len=4096)
    room = int(str(refusal.value).rsplit(" ", 1)[1])
    assert _plan(device, num_blocks=room, max_model_len=4096).num_blocks == (room,)


def test_a_step_has_room_for_every_decoding_sequence() -> None:
    assert _plan(max_model_len=64).max_num_batched_tokens == 256
    assert _plan(max_model_len=64, max_num_seqs=300).max_num_batched_tokens == 300


@pytest.mark.parametrize(
    ("asked", "arch", "expected"),
    [
        ("auto", "x86-64 avx2 avx512f avx512_bf16", "bf16"),
        ("auto", "x86-64 amx_bf16", "bf16"),
        ("auto", "aarch64 asimd bf16", "bf16"),
        ("auto", "x86-64 avx2 avx512f", "f32"),
        ("f16", "x86-64 avx2", "f32"),
        ("f32", "x86-64 avx512_bf16", "f32"),
    ],
)
def test_auto_takes_bf16_only_where_the_cpu_multiplies_it(asked: str, arch: str, expected: str) -> None:
    assert resolve_dtype(asked, _device(arch=arch)) == expected


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (RunnerConfig(dtype="int4"), "dtype 'int4'.*use auto, bfloat16, float16 .or half. or float32"),
        (RunnerConfig(kv_dtype="fp8_e4m3"), "kv_cache_dtype 'fp8_e4m3'.*use auto, bfloat16, float32 or int8"),
        (RunnerConfig(tensor_parallel=2), "tensor_parallel_size 2"),
        (RunnerConfig(block_size=1000), "block_size 1000"),
        (RunnerConfig(options={"threads": "2"}), "option 'threads'"),
        (RunnerConfig(options={"kernels": "triton"}), "kernels is 'triton'"),
        (RunnerConfig(options={"num_threads": "0"}), "num_threads is '0'"),
        (RunnerConfig(options={"num_threads": "many"}), "num_threads is 'many'"),
    ],
)
def test_a_setting_that_cannot_be_met_is_refused_by_name(config: RunnerConfig, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        BACKEND.check(SPEC, WEIGHTS, config, _device())


def test_a_missing_tensor_is_named_before_anything_is_read() -> None:
    weights = WeightIndex(tuple(t for t in WEIGHTS.tensors if t.name != "layers.3.up.weight"))
    with pytest.raises(WeightsError, match=r"layers\.3\.up\.weight"):
        BACKEND.plan(SPEC, weights, RunnerConfig(), [_device()])


def test_the_kv_of_layers_that_differ_is_added_up() -> None:
    wide = replace(LAYER, attention=replace(LAYER.attention, num_kv_heads=32))
    spec = replace(SPEC, kinds=(LAYER, wide), layers=(0, 1, 1))
    cache = kv_cache_spec(spec, resolve_shape(SPEC, RunnerConfig(), _device()))
    assert cache.groups[0].token_bytes == (8 + 32 + 32) * 2 * 64 * 2


def test_the_torch_free_half_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'torch_npu', 'triton', 'transformers'): sys.modules[name] = None\n"
        "import trivet_cpu\n"
        "from trivet.contract import RunnerConfig\n"
        "from trivet.models.model_files import open_model\n"
        "from trivet.demo_model import find_demo_model\n"
        "backend, files = trivet_cpu.trivet_backend(), open_model(find_demo_model())\n"
        "devices = backend.probe(1.0); backend.launch_env(devices)\n"
        "backend.check(files.spec, files.weights, RunnerConfig(), devices[0])\n"
        "backend.plan(files.spec, files.weights, RunnerConfig(), devices)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_stored_weights_need_the_native_kernels() -> None:
    device = _device()
    config = RunnerConfig(options={"weights": "stored", "kernels": "torch"})
    with pytest.raises(Unsupported, match=r"weights=stored needs the native kernels: torch was asked for"):
        CpuBackend().check(SPEC, WEIGHTS, config, device)
    with pytest.raises(Unsupported, match=r"option weights is 'int2'; use stored or float"):
        CpuBackend().check(SPEC, WEIGHTS, RunnerConfig(options={"weights": "int2"}), device)


@pytest.mark.parametrize(
    ("dtype", "weights", "num_bytes"),
    [("auto", None, 34 / 32), ("bf16", None, 2), ("auto", "float", 2), ("bf16", "stored", 34 / 32)],
)
def test_quantised_weights_stay_as_stored_unless_a_dtype_is_asked_for(
    dtype: str, weights: str | None, num_bytes: float
) -> None:
    tensors = (replace(t, format="q8_0") if len(t.shape) > 1 else t for t in WEIGHTS.tensors)
    config = RunnerConfig(dtype=dtype, max_model_len=64, options={"weights": weights} if weights else {})
    device = _device(arch="avx512f avx512_vnni avx512_bf16")
    plan = CpuBackend().plan(SPEC, WeightIndex(tuple(tensors)), config, [device])
    matrices = sum(math.prod(t.shape) for t in WEIGHTS.tensors if len(t.shape) > 1)
    assert _parts(plan)["weights"] == pytest.approx(matrices * num_bytes, rel=1e-3)
