"""The torch-free half of the CPU backend: what the host offers, and what a model would take of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from trivet.config import KERNELS_VARIABLE, kernels_dir
from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.decoder import check_dense
from trivet.models.expected_tensors import check_tensors
from trivet.models.spec import ModelSpec
from trivet.optional_contract import Advice
from trivet.runners.supported import check_adapters
from trivet.weights.index import WeightIndex
from trivet_cpu import native_plan
from trivet_cpu.bandwidth import read_bandwidth
from trivet_cpu.host import Host, usable_cpus
from trivet_cpu.kernel_build import BuildFailed, KernelCache, KernelsUnavailable
from trivet_cpu.kernel_level import TILE_LEVEL, KernelLevel, choose_level
from trivet_cpu.memory_plan import Shape
from trivet_cpu.native_plan import AS_STORED, NativeShape
from trivet_cpu.planner import Planner

if TYPE_CHECKING:
    import ctypes
    from pathlib import Path

    from trivet_cpu.native_pool import NativePool

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16  # tokens
# Of `trivet bench latency --interference`: 8 streams decode while prompts of 1,024 tokens arrive (SmolLM2, 4
# bit, 2-core Zen 4 VM). A step budget of                  32     64    128    256    512 tokens gives
#   ITL of the streams, p99, ms (p50 without prompts: 6)   24     43     82    155    305
#   TTFT of the prompts, p50, ms                          839    668    593    569    567
#   prompt tokens/s                                     1,221  1,533  1,727  1,798  1,807
# 256 has all of the speed of 512 at half its gap; 128 halves the gap again for 4 % of the speed. A chat that
# must not stall sets 64 or 128; prompts in bulk gain nothing by more.
MAX_NUM_BATCHED_TOKENS = 256
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
DTYPES = frozenset({"f32", "bf16"})
KV_DTYPES = DTYPES | {"int8"}  # int8: a scale for each token, head, and key or value; native kernels only
MAX_THREADS_A_CPU = 8  # a few more than CPUs are slow, as a test may want it; many are a mistake
OPTIONS = ("num_threads", "kernels", "weights", "attention")
STORED, FLOAT = "stored", "float"  # of the option `weights`
CHOICES = MappingProxyType(
    {"kernels": ("native", "torch"), "weights": (STORED, FLOAT), "attention": ("native",)}
)


class CpuBackend:
    """The host's CPUs as one device.

    Two runners: the native one (C++ kernels, built when first needed) wherever it knows the model and there
    is a compiler, else torch's. The option `kernels` asks for one of them.

    In torch's runner the option `attention=native` lets the kernels attend. A layer alone is faster so: 16
    sequences of 1,024 tokens take 1.6 ms instead of 7.0 (16 heads, 4 of keys, of 128 in bf16, 2-core Zen 4
    VM), a chunk of 256 tokens after 768 takes 10.5 ms instead of 14.4. A whole model at short contexts gains
    less, as two pools of threads are in each other's way: 8 streams 84 tokens/s instead of 78 and prompts of
    512 tokens 1,093 instead of 1,268 (8 layers of 1,024, 4 of 16 heads of keys, transformers' code), 70
    instead of 54 and 885 instead of 903 with 16 of 16. So it has to be asked for.

    With dtype "auto" the native runner keeps quantised weights as the file has them, with activations in 8
    bits (the largest in 15): a third of the memory and faster than bf16. A dtype that is asked for is what
    all weights are computed in. The option `weights` says otherwise: "stored" or "float", whatever the dtype.
    """

    name = "cpu"
    # The contract suite runs over each of these.
    tested_options: Sequence[Mapping[str, str]] = (
        {},
        {"kernels": "torch"},
        {"kv_cache_dtype": "int8"},
    )

    def __init__(self, host: Host | None = None, kernels: KernelCache | None = None) -> None:
        self._host = host or Host()
        self._kernels = kernels or KernelCache()

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """The one device "host", within the limits of affinity and cgroups; reads files only."""
        host = self._host
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid="host",
                name=host.cpu_name(),
                arch=host.arch(),
                total_bytes=host.total_bytes(),
                free_bytes=host.free_bytes(),
                dtypes=DTYPES,
                versions=(("cpus", str(host.num_cpus(usable_cpus()))),),
                is_host_memory=True,
            )
        ]

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Threads of every pool that reads its size at import; `num_threads` overrides torch's later."""
        threads = str(self._host.num_cpus(usable_cpus()))
        prebuilt = kernels_dir()
        return {
            **({KERNELS_VARIABLE: str(prebuilt.absolute())} if prebuilt else {}),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # A worker of torch's pool waits spinning; libgomp's default of about a millisecond takes a core
            # from the Python thread between two steps. 20,000 turns bridge the gaps inside a step.
            "GOMP_SPINCOUNT": "20000",
            # Weights in huge pages where the kernel leaves that to the program: products of one row read them
            # all and gain 15 %. glibc 2.35 and later; others ignore it.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "OPENBLAS_NUM_THREADS": "1",  # NumPy: the sampler multiplies no matrices
            "CUDA_VISIBLE_DEVICES": "",  # a torch built for CUDA must not open a context on a GPU
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # nor import torch_npu
        }

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """As the contract; also WeightsError where the files do not match the spec."""
        resolve_dtype(config.dtype, device)
        if config.kv_dtype not in ("auto", *KV_DTYPES):
            raise Unsupported(
                f"kv_cache_dtype {config.kv_dtype!r} is not supported on the CPU; "
                "use auto, bfloat16, float32 or int8"
            )
        if config.tensor_parallel != 1:
            raise Unsupported(
                f"tensor_parallel_size {config.tensor_parallel} is not supported on the CPU, which is one "
                "device; leave it at 1 and raise num_threads"
            )
        if config.block_size is not None and not 1 <= config.block_size <= 256:
            raise Unsupported(f"block_size {config.block_size} is not supported on the CPU; use 1 to 256")
        threads, usable = num_threads(config.options), len(usable_cpus())
        if threads is not None and threads > MAX_THREADS_A_CPU * usable:
            raise Unsupported(f"num_threads {threads} on {usable} CPUs would only wait; use at most {usable}")
        for name, choices in CHOICES.items():
            chosen = config.options.get(name)
            if chosen not in (None, *choices):
                raise Unsupported(
                    f"option {name} is {chosen!r}; use {' or '.join(choices)}, or leave it unset"
                )
        check_adapters(spec, config)
        if not spec.shapes_only:
            check_dense(spec)
            check_tensors(spec, weights)
        self._check_kernels(spec, config, device)

    def _check_kernels(self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> None:
        """Raises: Unsupported where what was asked for needs kernels that cannot do it."""
        asked, reason = _asked_of_native(config), None
        if asked is not None:
            reason = self._why_not_native(spec, config, device)
        elif config.options.get("attention") == "native":
            asked, reason = "attention=native", self._why_not_attend(spec, config, device)
        if reason is not None:
            raise Unsupported(f"{asked} needs the native kernels: {reason}; leave it unset")

    def _why_not_native(self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> str | None:
        """The reason for torch's runner; None: the native one is taken."""
        if config.options.get("kernels") == "torch":
            return "torch was asked for"
        unknown = native_plan.unknown_part(spec, config.block_size or BLOCK_SIZE)
        if unknown is not None:
            return f"the native kernels do not compute {unknown}"
        return self._why_no_kernels(device)

    def _why_not_attend(self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> str | None:
        """The reason for torch's attention in torch's runner; None: the kernels can attend."""
        for layer in spec.kinds:
            unknown = native_plan.unknown_attention(layer.attention)
            if unknown is not None:
                return f"they do not compute {unknown}"
        block_size = config.block_size or BLOCK_SIZE
        if block_size % native_plan.LANES:
            return f"block_size {block_size} is no multiple of {native_plan.LANES}"
        return self._why_no_kernels(device)

    def _why_no_kernels(self, device: DeviceInfo) -> str | None:
        try:
            self._kernels.check(self._level(device).name)
        except KernelsUnavailable as error:
            return str(error)
        return None

    def _level(self, device: DeviceInfo) -> KernelLevel:
        return choose_level(self._host, self._kernels, device.arch)

    def advice(self, installed: Mapping[str, str]) -> list[Advice]:
        """As `optional_contract.GivesAdvice`: which kernels an engine takes, and why no better ones."""
        (device,) = self.probe(1.0)
        level = self._level(device)
        if level.not_best_because is None:
            return [Advice("ok", f"kernels for {level.name}")]
        return [
            Advice(
                "warn",
                f"kernels for {level.name}: {level.not_best_because}",
                "lift the limit and start Trivet anew; prompts are computed several times faster",
            )
        ]

    def _torch_shape(
        self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo, max_model_len: int | None = None
    ) -> Shape:
        """For torch's runner: with the buffers of native attention where that is taken."""
        shape = resolve_shape(spec, config, device, max_model_len)
        if config.options.get("attention") != "native":
            return shape
        threads = self._num_threads(config)
        parts = native_plan.attention_parts(spec, shape.max_num_batched_tokens, threads)
        partials = native_plan.partial_bytes(spec, NativeShape(shape, shape.dtype, threads))
        return replace(shape, attention_bytes=sum(parts) + partials)

    def _num_threads(self, config: RunnerConfig) -> int:
        return num_threads(config.options) or self._host.num_cpus(usable_cpus())

    def _native_shape(self, config: RunnerConfig, shape: Shape, device: DeviceInfo) -> NativeShape:
        weights = config.options.get("weights", STORED if config.dtype == "auto" else FLOAT)
        dtype = AS_STORED if weights == STORED else shape.dtype
        return NativeShape(shape, dtype, self._num_threads(config), self._level(device).name == TILE_LEVEL)

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """As the contract. `max_model_len` is lowered to what fits unless it was asked for."""
        (device,) = devices
        self.check(spec, weights, config, device)
        if self._why_not_native(spec, config, device) is not None:
            return Planner(
                spec, weights, config, device, lambda config: self._torch_shape(spec, config, device)
            ).plan()

        def native_parts(shape: Shape) -> tuple[MemoryPart, ...]:
            return native_plan.fixed_parts(spec, weights, self._native_shape(config, shape, device))

        return Planner(
            spec, weights, config, device, lambda config: resolve_shape(spec, config, device), native_parts
        ).plan()

    def bandwidth(self, device: DeviceInfo) -> float | None:
        """Measured now, with the threads that an engine alone would have."""
        return read_bandwidth(self._host.num_cpus(usable_cpus()))

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """The native runner, or torch's, which imports torch.

        Raises: KernelsUnavailable where native kernels were asked for and do not build.
        """
        (device,) = devices
        reason = self._why_not_native(spec, config, device)
        if reason is None:
            try:
                return self._create_native(spec, config, plan, device)
            except KernelsUnavailable as error:
                if _asked_of_native(config) is not None:
                    raise
                reason = str(error)
        if config.options.get("kernels") != "torch" and not spec.shapes_only:
            logger.warning("kernels=torch the native ones are several times faster, but %s", reason)
        return self._create_torch(spec, config, plan, device)

    def _create_native(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, device: DeviceInfo
    ) -> Runner:
        from trivet_cpu.core_shares import CoreShare
        from trivet_cpu.native_library import load_library
        from trivet_cpu.native_runner import CpuNativeRunner

        level, library_path = self._built_level(device)
        if level.not_best_because is not None:
            logger.warning("kernels=%s %s", level.name, level.not_best_because)
        library = load_library(library_path)
        shape = resolve_shape(spec, config, device, plan.max_model_len)
        cores = CoreShare(self._host, num_threads(config.options))
        return CpuNativeRunner(
            spec, plan, self._native_shape(config, shape, device), library, self._host, cores
        )

    def _built_level(self, device: DeviceInfo) -> tuple[KernelLevel, Path]:
        """The best level that builds, and its library. Raises: KernelsUnavailable."""
        level = self._level(device)
        while True:
            try:
                return level, self._kernels.library(level.name)
            except BuildFailed:
                next_level = self._level(device)  # the failed one has a mark now
                if next_level.name == level.name:
                    raise
                level = next_level

    def _create_torch(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, device: DeviceInfo
    ) -> Runner:
        from trivet_cpu.runner import CpuTorchRunner

        dtype = resolve_dtype(config.dtype, device)
        if config.dtype == "f16":
            logger.warning("dtype=f16 the CPU has no fast float16 arithmetic; computing in dtype=%s", dtype)
        shape, threads = (
            self._torch_shape(spec, config, device, plan.max_model_len),
            self._num_threads(config),
        )
        native = self._native_attention(config, device, threads) if shape.attention_bytes else None
        return CpuTorchRunner(spec, plan, shape, threads, self._host, native)

    def _native_attention(
        self, config: RunnerConfig, device: DeviceInfo, threads: int
    ) -> tuple[ctypes.CDLL, NativePool]:
        """Raises: KernelsUnavailable."""
        from trivet_cpu.core_shares import CoreShare
        from trivet_cpu.native_library import load_library
        from trivet_cpu.native_pool import NativePool

        library = load_library(self._built_level(device)[1])
        return library, NativePool(library, threads, CoreShare(self._host, num_threads(config.options)))


def _asked_of_native(config: RunnerConfig) -> str | None:
    """The setting that only the native kernels meet; None where torch's would do."""
    if config.kv_dtype == "int8":
        return "kv_cache_dtype=int8"
    if config.options.get("weights") == STORED:
        return f"weights={STORED}"
    return "kernels=native" if config.options.get("kernels") == "native" else None


def resolve_dtype(dtype: str, device: DeviceInfo) -> str:
    """ "auto" is bf16 where the CPU multiplies it natively. Raises: Unsupported."""
    if dtype in DTYPES:
        return dtype
    if dtype in ("auto", "f16"):  # f16: what "auto" takes, for lack of float16 arithmetic
        return "bf16" if any(flag in device.arch.split() for flag in NATIVE_BF16) else "f32"
    raise Unsupported(
        f"dtype {dtype!r} is not supported on the CPU; use auto, bfloat16, float16 (or half) or float32"
    )


def num_threads(options: Mapping[str, str]) -> int | None:
    """Raises: Unsupported for an unknown option or a bad count."""
    for key in options:
        if key not in OPTIONS:
            raise Unsupported(f"option {key!r} is unknown to the CPU backend; it knows: {', '.join(OPTIONS)}")
    value = options.get("num_threads")
    if value is None:
        return None
    if not value.isdigit() or int(value) < 1:
        raise Unsupported(f"num_threads is {value!r}; it must be a count of at least 1")
    return int(value)


def resolve_shape(
    spec: ModelSpec, config: RunnerConfig, device: DeviceInfo, max_model_len: int | None = None
) -> Shape:
    """The config with every choice made."""
    dtype = resolve_dtype(config.dtype, device)
    return Shape(
        dtype=dtype,
        kv_dtype=dtype if config.kv_dtype == "auto" else config.kv_dtype,
        block_size=config.block_size or BLOCK_SIZE,
        max_model_len=max_model_len or config.max_model_len or spec.max_position,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens
        or max(MAX_NUM_BATCHED_TOKENS, config.max_num_seqs),
        max_logits_rows=config.max_logits_rows,
        adapters=config.adapters,
    )
