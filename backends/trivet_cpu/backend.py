"""The torch-free half of the CPU backend: what the host offers, and what a model would take of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trivet.config import KERNELS_VARIABLE, kernels_dir
from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.decoder import check_dense
from trivet.models.expected_tensors import check_tensors
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_cpu import native_plan
from trivet_cpu.host import Host, usable_cpus
from trivet_cpu.kernel_build import KernelCache, KernelsUnavailable, levels_of
from trivet_cpu.memory_plan import Shape
from trivet_cpu.native_plan import AS_STORED, NativeShape
from trivet_cpu.planner import Planner

if TYPE_CHECKING:
    import ctypes

    from trivet_cpu.native_pool import NativePool

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16  # tokens
MAX_NUM_BATCHED_TOKENS = 256  # a chunk of 2,048 would stall every decoding sequence for a second
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
DTYPES = frozenset({"f32", "bf16"})
KV_DTYPES = DTYPES | {"int8"}  # int8: a scale for each token, head, and key or value; native kernels only
OPTIONS = ("num_threads", "kernels", "weights", "attention")
KERNELS = ("native", "torch")
STORED, FLOAT = "stored", "float"  # of the option `weights`


class CpuBackend:
    """The host's CPUs as one device.

    Two runners: the native one (C++ kernels, built when first needed) wherever it knows the model and there
    is a compiler, else torch's. The option `kernels` asks for one of them.

    In torch's runner the option `attention=native` lets the kernels attend: 16 sequences of 1,024 tokens take
    1.8 ms a layer instead of 6.3 (16 heads of 128, 2-core Zen 4 VM), but a chunk of 256 tokens 37 instead of
    16, so it is for long answers.

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
        num_threads(config.options)
        kernels = config.options.get("kernels")
        if kernels not in (None, *KERNELS):
            raise Unsupported(f"option kernels is {kernels!r}; use {' or '.join(KERNELS)}, or leave it unset")
        weights_option = config.options.get("weights")
        if weights_option not in (None, STORED, FLOAT):
            raise Unsupported(
                f"option weights is {weights_option!r}; use {STORED} or {FLOAT}, or leave it unset"
            )
        attention = config.options.get("attention")
        if attention not in (None, "native"):
            raise Unsupported(f"option attention is {attention!r}; use native, or leave it unset")
        if not spec.shapes_only:
            check_dense(spec)
            check_tensors(spec, weights)
        asked = _asked_of_native(config)
        if asked is not None:
            reason = self._why_not_native(spec, config, device)
            if reason is not None:
                raise Unsupported(f"{asked} needs the native kernels: {reason}; leave it unset")

    def _why_not_native(self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> str | None:
        """The reason for torch's runner; None: the native one is taken."""
        if config.options.get("kernels") == "torch":
            return "torch was asked for"
        unknown = native_plan.unknown_part(spec, config.block_size or BLOCK_SIZE)
        if unknown is not None:
            return f"the native kernels do not compute {unknown}"
        try:
            self._kernels.check(levels_of(device.arch)[0])
        except KernelsUnavailable as error:
            return str(error)
        return None

    def _attends_natively(self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> bool:
        """Whether the kernels attend in torch's runner, too: the option `attention=native`."""
        is_known = all(native_plan.unknown_attention(layer.attention) is None for layer in spec.kinds)
        if not is_known or config.options.get("attention") != "native":
            return False
        if (config.block_size or BLOCK_SIZE) % native_plan.LANES:
            return False
        try:
            self._kernels.check(levels_of(device.arch)[0])
        except KernelsUnavailable:
            return False
        return True

    def _torch_shape(
        self, spec: ModelSpec, config: RunnerConfig, device: DeviceInfo, max_model_len: int | None = None
    ) -> Shape:
        """For torch's runner: with the buffers of native attention where that is taken."""
        shape = resolve_shape(spec, config, device, max_model_len)
        if not self._attends_natively(spec, config, device):
            return shape
        threads = self._num_threads(config)
        parts = native_plan.attention_parts(spec, shape.max_num_batched_tokens, threads)
        return replace(shape, attention_bytes=sum(parts))

    def _num_threads(self, config: RunnerConfig) -> int:
        return num_threads(config.options) or self._host.num_cpus(usable_cpus())

    def _native_shape(self, config: RunnerConfig, shape: Shape) -> NativeShape:
        weights = config.options.get("weights", STORED if config.dtype == "auto" else FLOAT)
        dtype = AS_STORED if weights == STORED else shape.dtype
        return NativeShape(shape, dtype, self._num_threads(config))

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
            return native_plan.fixed_parts(spec, weights, self._native_shape(config, shape))

        return Planner(
            spec, weights, config, device, lambda config: resolve_shape(spec, config, device), native_parts
        ).plan()

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

        library = load_library(self._kernels.library(levels_of(device.arch)[0]))
        shape = resolve_shape(spec, config, device, plan.max_model_len)
        cores = CoreShare(self._host, num_threads(config.options))
        return CpuNativeRunner(spec, plan, self._native_shape(config, shape), library, self._host, cores)

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
        if native is None:
            shape = replace(shape, attention_bytes=0)
        return CpuTorchRunner(spec, plan, shape, threads, self._host, native)

    def _native_attention(
        self, config: RunnerConfig, device: DeviceInfo, threads: int
    ) -> tuple[ctypes.CDLL, NativePool] | None:
        from trivet_cpu.core_shares import CoreShare
        from trivet_cpu.native_library import load_library
        from trivet_cpu.native_pool import NativePool

        try:
            library = load_library(self._kernels.library(levels_of(device.arch)[0]))
        except KernelsUnavailable as error:
            logger.warning("attention=torch the native one is several times faster, but %s", error)
            return None
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
    )
