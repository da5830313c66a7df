"""The torch-free half of the CUDA backend: finds GPUs, says what runs on them and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trivet.config import inherited_environment
from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.optional_contract import DeviceUsage
from trivet.runners.planner import Costs, plan_memory, usable_bytes
from trivet.runners.step_shape import resolve_dtype
from trivet.runners.supported import check_adapters, check_block_size, check_model
from trivet.self_test import OpOutcome
from trivet.weights.index import WeightIndex
from trivet_cuda.detection import find_gpus
from trivet_cuda.memory_plan import Shape, fixed_parts, kv_cache_spec
from trivet_cuda.nvml import Gpu, find_by_nvml, load_nvml
from trivet_cuda.options import CudaOptions
from trivet_cuda.smi_usage import usage_by_smi
from trivet_cuda.visibility import BY_BUS, ORDER, VISIBLE, hidden_gpus

BLOCK_SIZE = 16  # tokens
BLOCK_SIZES = (8, 16, 32, 64, 128)
FIRST_ARCH = 80  # Ampere: bfloat16, and asynchronous copies that the kernels are pipelined by
FIRST_FP8 = 89  # Ada: converts float8
MAX_HEAD_DIM = 256
PROBE_S = 5.0
# Of the whole self-test 300 s; a first run compiles some 300 kernels, half a second each.
SELF_TEST_S = {"kernels": 150.0, "sampler": 15.0, "speeds": 30.0, "model": 90.0}
KV_DTYPES = ("int8", "fp8_e4m3")
FLASHINFER_HEAD_DIMS = (64, 128, 256)


class CudaBackend:
    """NVIDIA GPUs, one device each."""

    name = "cuda"

    def __init__(
        self,
        root: Path = Path("/"),
        nvidia_smi: str = "nvidia-smi",
        nvml: Callable[[], Any] = load_nvml,
        environment: Callable[[], Mapping[str, str]] = inherited_environment,
    ) -> None:
        self._root, self._nvidia_smi, self._nvml, self._environment = root, nvidia_smi, nvml, environment

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """As the contract; GPUs that this process's CUDA_VISIBLE_DEVICES does not name stay out of use."""
        found, _ = self._found(timeout_s)
        hidden = hidden_gpus(found, self._environment())
        return [_device(gpu, hidden.get(gpu.uid, "")) for gpu in found]

    def _found(self, timeout_s: float) -> tuple[list[Gpu], str]:
        return find_gpus(self._root, self._nvidia_smi, timeout_s, self._nvml)

    def absent_because(self, timeout_s: float = 5.0) -> str:
        """Why `probe` finds no device, for `trivet doctor`; empty where it finds one."""
        found, reason = self._found(timeout_s)
        return "" if found else f"no NVIDIA GPU: {reason}"

    def usage(self, timeout_s: float = 5.0) -> dict[str, DeviceUsage]:
        """By uid, what NVML says now, in milliseconds; without nvidia-ml-py, nvidia-smi. Never raises."""
        found, _ = find_by_nvml(self._nvml)
        if not found:
            return usage_by_smi(self._nvidia_smi, timeout_s)
        return {gpu.uid: gpu.usage for gpu in found if gpu.usage is not None}

    def bandwidth(self, device: DeviceInfo, timeout_s: float = 5.0) -> float | None:
        """By NVML; nvidia-smi's table does not tell."""
        found, _ = find_by_nvml(self._nvml)
        return next((gpu.bandwidth for gpu in found if gpu.uid == device.uid), None)

    def self_test(self, device: int) -> Iterator[OpOutcome]:
        """As `trivet.self_test.TestsItself`."""
        from trivet_cuda.device import CudaDevice, open_by_uid
        from trivet_cuda.measures import run_measures
        from trivet_cuda.op_table import triton_table
        from trivet_cuda.random_model import run_random_model
        from trivet_cuda.sampler_check import run_sampler_check
        from trivet_cuda.self_test import run_full, within

        usable = [each for each in self.probe(PROBE_S) if each.unusable_because is None]
        if device < len(usable):  # counted as nvidia-smi does; CUDA may have its fastest first
            opened = open_by_uid(usable[device].uid, self._environment())
        else:
            opened = CudaDevice(device)
        table = triton_table()
        yield OpOutcome(("device",), opened.label, "", 0.0, 0.0)
        yield from within(SELF_TEST_S["kernels"], run_full(table, opened), ("self-test",))
        yield from within(SELF_TEST_S["sampler"], run_sampler_check(opened), ("draw",))
        yield from within(SELF_TEST_S["speeds"], run_measures(table, opened), ("self-test",))
        yield from within(SELF_TEST_S["model"], run_random_model(table, opened), ("decoder",))

    def self_test_versions(self) -> dict[str, str]:
        """As `trivet.self_test.TestsItself`."""
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name in ("triton", "nvidia-ml-py"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed"
        for gpu in self._found(PROBE_S)[0]:
            found |= {f"gpu{gpu.index}": gpu.name, "driver": gpu.driver}
        return found

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Only the chosen GPUs are visible, by UUID and in this order, which is that of the ranks."""
        return {
            ORDER: BY_BUS,  # for who counts nevertheless: as NVML and nvidia-smi do
            VISIBLE: ",".join(device.uid for device in devices),
            "OMP_NUM_THREADS": "1",  # many ranks on one host; the arithmetic is the GPU's
        }

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """As the contract; also WeightsError where the files do not match the spec."""
        shape = resolve_shape(spec, config, device)
        _check_cache(shape, device)
        check_adapters(spec, config)
        check_model(spec, weights, shape.num_ranks, "CUDA")
        for layer in spec.kinds:
            attention = layer.attention
            if shape.options.attention == "flashinfer":
                _check_flashinfer(shape, attention.head_dim)
            if attention.alibi:
                raise Unsupported(
                    f"{spec.architecture} uses ALiBi, which no CUDA kernel has; use backend cpu"
                )
            if attention.head_dim > MAX_HEAD_DIM:
                raise Unsupported(
                    f"{spec.architecture} has heads of {attention.head_dim}; the CUDA kernels take at most "
                    f"{MAX_HEAD_DIM}: use backend cpu"
                )

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """As the contract, for the device of which the least may be used."""
        device = min(devices, key=lambda each: usable_bytes(config, each))
        if config.tensor_parallel > 1 and any(each.uid.startswith("MIG-") for each in devices):
            raise Unsupported(
                f"tensor_parallel_size {config.tensor_parallel} does not run over MIG instances, of which "
                "CUDA shows a process only one; use 1, or whole GPUs"
            )
        self.check(spec, weights, config, device)
        shape = resolve_shape(spec, config, device)
        costs = Costs(kv_cache_spec(spec, shape), partial(fixed_parts, spec, weights), devices="GPUs")
        return plan_memory(config, shape, device, costs)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """Opens the GPU. Raises: BackendError with what to do where torch or Triton do not work."""
        from trivet_cuda.device import open_by_uid
        from trivet_cuda.op_table import attention_table
        from trivet_cuda.ranks import open_gpu
        from trivet_cuda.runner import CudaRunner

        if config.tensor_parallel > 1:
            from trivet.runners.ranks import TensorParallelRunner

            return TensorParallelRunner(spec, config, plan, devices, open_gpu)
        shape = runner_shape(spec, config, plan, devices)
        device = open_by_uid(devices[0].uid, self._environment())
        return CudaRunner(
            spec, plan, shape, device, attention_table(shape.options.attention, device.torch_device)
        )


def runner_shape(
    spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
) -> Shape:
    """As it was planned. Raises: Unsupported."""
    return resolve_shape(spec, config, devices[0]).with_max_model_len(plan.max_model_len)


def resolve_shape(spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> Shape:
    """The config with every choice made. Raises: Unsupported."""
    dtype = resolve_dtype(config.dtype, device)
    kv_dtype = dtype if config.kv_dtype == "auto" else config.kv_dtype
    return Shape.resolved(
        spec,
        config,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        kv_dtype="fp8_e4m3" if kv_dtype == "fp8" else kv_dtype,
        options=CudaOptions.parse(config.options),
    )


def _check_cache(shape: Shape, device: DeviceInfo) -> None:
    kv_dtype = shape.kv_dtype
    if kv_dtype not in (shape.dtype, *KV_DTYPES):
        raise Unsupported(
            f"kv_cache_dtype {kv_dtype!r} is not supported on CUDA with dtype {shape.dtype}; use auto, int8 "
            "or fp8_e4m3"
        )
    if kv_dtype == "fp8_e4m3" and _arch(device) < FIRST_FP8:
        raise Unsupported(
            f"kv_cache_dtype fp8_e4m3 needs a GPU of compute capability 8.9 or more, and {device.name} is "
            f"{device.arch}; use int8, which takes as little"
        )
    check_block_size(shape.block_size, BLOCK_SIZES, "CUDA")


def _check_flashinfer(shape: Shape, head_dim: int) -> None:
    if shape.dtype == "f32" or shape.kv_dtype == "int8":
        raise Unsupported(
            f"options.attention flashinfer does not run with dtype {shape.dtype} and kv_cache_dtype "
            f"{shape.kv_dtype}; use 16 bits, fp8_e4m3, or attention=triton"
        )
    if head_dim not in FLASHINFER_HEAD_DIMS:
        raise Unsupported(
            f"options.attention flashinfer takes heads of {', '.join(map(str, FLASHINFER_HEAD_DIMS))} and "
            f"this model has some of {head_dim}; use attention=triton"
        )


def _arch(device: DeviceInfo) -> int:
    """90 of "sm_90"; 0 where it is unknown."""
    number = device.arch.removeprefix("sm_")
    return int(number) if number.isdigit() else 0


def _device(gpu: Gpu, hidden_because: str) -> DeviceInfo:
    arch = gpu.compute_capability.replace(".", "")
    fault = gpu.fault or hidden_because
    if not fault and arch and int(arch) < FIRST_ARCH:
        fault = (
            f"its compute capability is {gpu.compute_capability} and the CUDA backend needs 8.0 (Ampere) or "
            "more; use backend cpu"
        )
    return DeviceInfo(
        kind=CudaBackend.name,
        index=gpu.index,
        uid=gpu.uid,
        name=gpu.name,
        arch=f"sm_{arch}" if arch else "",
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
        dtypes=frozenset({"f32", "f16", "bf16"} if arch and int(arch) >= FIRST_ARCH else {"f32", "f16"}),
        versions=(("driver", gpu.driver),) if gpu.driver else (),
        unusable_because=fault or None,
    )
