"""The torch-free half of the CPU backend: what the host offers, and what a model would take of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from trivet.config import KERNELS_VARIABLE, kernels_dir
from trivet.contract import DeviceInfo, MemoryPart, MemoryPlan, Runner, RunnerConfig
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.decoder import check_dense
from trivet.models.expected_tensors import check_tensors
from trivet.models.spec import ModelSpec
from trivet.weights.index import WeightIndex
from trivet_cpu import memory_plan, native_plan
from trivet_cpu.host import Host, usable_cpus
from trivet_cpu.kernel_build import KernelCache, KernelsUnavailable, levels_of
from trivet_cpu.memory_plan import Shape
from trivet_cpu.native_plan import AS_STORED, NativeShape

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16  # tokens
MAX_NUM_BATCHED_TOKENS = 256  # a chunk of 2,048 would stall every decoding sequence for a second
# Python, NumPy and torch themselves, and code that oneDNN makes at run time: 250 to 350 MB measured.
PROCESS_BYTES = 400 << 20
# The same without torch.
NATIVE_PROCESS_BYTES = 120 << 20
# Without a stated share the KV cache takes at most this part of what is free, for other instances, and at
# most this many bytes: touching 1 GiB takes 0.5 to 1.2 s (2-core Zen 4 VM), and it holds 46,000 tokens of a
# 135M model. It grows beyond both only to hold one sequence of full length.
DEFAULT_KV_SHARE = 0.5
DEFAULT_KV_BYTES = 1 << 30
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
DTYPES = frozenset({"f32", "bf16"})
KV_DTYPES = DTYPES | {"int8"}  # int8: a scale for each token, head, and key or value; native kernels only
OPTIONS = ("num_threads", "kernels", "weights")
KERNELS = ("native", "torch")
STORED, FLOAT = "stored", "float"  # of the option `weights`


class CpuBackend:
    """The host's CPUs as one device.

    Two runners: the native one (C++ kernels, built when first needed) wherever it knows the model and there
    is a compiler, else torch's. The option `kernels` asks for one of them.

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

    def _native_shape(self, config: RunnerConfig, shape: Shape) -> NativeShape:
        threads = num_threads(config.options) or self._host.num_cpus(usable_cpus())
        weights = config.options.get("weights", STORED if config.dtype == "auto" else FLOAT)
        return NativeShape(shape, AS_STORED if weights == STORED else shape.dtype, threads)

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """As the contract. `max_model_len` is lowered to what fits unless it was asked for."""
        (device,) = devices
        self.check(spec, weights, config, device)
        if self._why_not_native(spec, config, device) is not None:
            return _Planner(spec, weights, config, device).plan()

        def native_parts(shape: Shape) -> tuple[MemoryPart, ...]:
            return native_plan.fixed_parts(spec, weights, self._native_shape(config, shape))

        return _Planner(spec, weights, config, device, native_parts).plan()

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
        threads = num_threads(config.options) or self._host.num_cpus(usable_cpus())
        return CpuTorchRunner(
            spec, plan, resolve_shape(spec, config, device, plan.max_model_len), threads, self._host
        )


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


class _Planner:
    """One planning problem: how many blocks, and how long a sequence may be."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightIndex,
        config: RunnerConfig,
        device: DeviceInfo,
        native_parts: Callable[[Shape], tuple[MemoryPart, ...]] | None = None,
    ) -> None:
        """`native_parts` gives all but the KV cache of the native runner; None plans for torch's."""
        self._spec, self._weights, self._config, self._device = spec, weights, config, device
        self._native_parts = native_parts
        self._shape = resolve_shape(spec, config, device)
        self._block_bytes = memory_plan.kv_cache_spec(spec, self._shape).block_bytes
        self._num_host_blocks = config.swap_bytes // self._block_bytes
        self._limit = device.free_bytes
        if config.memory_fraction is not None:
            self._limit = min(self._limit, int(config.memory_fraction * device.total_bytes))

    def plan(self) -> MemoryPlan:
        shape = self._shape
        if self._config.num_blocks is not None:
            capacity = (self._config.num_blocks - 1) * shape.block_size
            if capacity < 1:
                raise DoesNotFit(
                    f"num_gpu_blocks_override {self._config.num_blocks} leaves no block for a sequence "
                    "beside the scratch block; use at least 2"
                )
            if self._config.max_model_len is None:
                shape = shape.with_max_model_len(min(shape.max_model_len, capacity))
            elif capacity < shape.max_model_len:
                raise DoesNotFit(
                    f"max_model_len {shape.max_model_len} needs {shape.blocks_per_sequence + 1} KV blocks of "
                    f"{shape.block_size} tokens and num_gpu_blocks_override is {self._config.num_blocks}; "
                    f"raise num_gpu_blocks_override or lower max_model_len to {capacity}"
                )
            num_blocks = self._config.num_blocks
            if num_blocks > self._max_blocks(shape):
                raise self._does_not_fit(shape, num_blocks)
        else:
            shape = self._fitting(shape)
            num_blocks = self._default_blocks(shape)
        kv = memory_plan.kv_cache_spec(self._spec, shape)
        weights, *others = self._fixed_parts(shape)
        return MemoryPlan(
            kv=kv,
            num_blocks=(num_blocks,),
            num_host_blocks=self._num_host_blocks,
            parts=(weights, MemoryPart("kv", num_blocks * kv.block_bytes), *others),
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len,
        )

    def _fixed_parts(self, shape: Shape) -> tuple[MemoryPart, ...]:
        """All but the KV cache. The swap space is host memory like any other here."""
        host = memory_plan.host_kv_part(self._num_host_blocks * self._block_bytes)
        if self._native_parts is not None:
            return self._native_parts(shape) + host
        return memory_plan.fixed_parts(self._spec, self._weights, shape) + host

    def _fixed_bytes(self, shape: Shape) -> int:
        process = PROCESS_BYTES if self._native_parts is None else NATIVE_PROCESS_BYTES
        return process + sum(part.size_bytes for part in self._fixed_parts(shape))

    def _max_blocks(self, shape: Shape) -> int:
        """KV blocks that fit beside everything else."""
        return (self._limit - self._fixed_bytes(shape)) // self._block_bytes

    def _fitting(self, shape: Shape) -> Shape:
        """`shape` if one sequence of full length fits; else shortened, if the length was not asked for."""
        if self._max_blocks(shape) >= shape.blocks_per_sequence + 1:
            return shape
        longest = self._longest(shape)
        if longest is None or self._config.max_model_len is not None:
            raise self._does_not_fit(shape, shape.blocks_per_sequence + 1)
        return shape.with_max_model_len(longest)

    def _longest(self, shape: Shape) -> int | None:
        """The largest length of whole blocks at which one sequence fits; None if not even one block does."""
        low, high = 0, shape.blocks_per_sequence
        while low < high:  # the bytes needed grow with the length
            middle = (low + high + 1) // 2
            trial = shape.with_max_model_len(middle * shape.block_size)
            low, high = (middle, high) if self._max_blocks(trial) >= middle + 1 else (low, middle - 1)
        return low * shape.block_size if low else None

    def _default_blocks(self, shape: Shape) -> int:
        wanted = shape.max_num_seqs * shape.blocks_per_sequence + 1
        room = self._max_blocks(shape)
        if self._config.memory_fraction is None:
            share = int(room * DEFAULT_KV_SHARE)
            room = max(shape.blocks_per_sequence + 1, min(share, DEFAULT_KV_BYTES // self._block_bytes))
        return min(wanted, room)

    def _does_not_fit(self, shape: Shape, num_blocks: int) -> DoesNotFit:
        """With both numbers, and the smallest change that fits."""
        needed = self._fixed_bytes(shape) + num_blocks * self._block_bytes
        kv = num_blocks * self._block_bytes
        return DoesNotFit(
            f"max_model_len {shape.max_model_len} with {num_blocks} KV blocks needs {_gib(needed)} "
            f"({_gib(kv)} of it KV cache) and {_gib(self._limit)} may be used; {self._remedy(shape, needed)}"
        )

    def _remedy(self, shape: Shape, needed: int) -> str:
        device, config = self._device, self._config
        wider = ""
        if config.memory_fraction is not None and needed <= device.free_bytes:
            wider = f"raise gpu_memory_utilization to {needed / device.total_bytes + 0.005:.2f}"
        longest = self._longest(shape)
        if config.num_blocks is not None and (room := self._max_blocks(shape)) >= 2:
            shorter = f"lower num_gpu_blocks_override to {room}"
        elif longest is not None:
            shorter = f"lower max_model_len to {longest}"
        elif shape.dtype == "f32" and self._fits_in("bf16"):
            shorter = "set dtype to bfloat16"
        else:
            shorter = (
                "" if wider else f"free {_gib(needed - self._limit)} of memory or choose a smaller model"
            )
        return " or ".join(change for change in (wider, shorter) if change)

    def _fits_in(self, dtype: str) -> bool:
        from dataclasses import replace

        config = replace(self._config, dtype=dtype)
        return (
            _Planner(self._spec, self._weights, config, self._device, self._native_parts)._longest(
                resolve_shape(self._spec, config, self._device)
            )
            is not None
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
