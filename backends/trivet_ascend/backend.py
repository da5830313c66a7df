"""The torch-free half of the Ascend backend: finds NPUs, says what runs on them and what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import Unsupported
from trivet.models.spec import ModelSpec
from trivet.optional_contract import Advice, DeviceUsage, DeviceUser
from trivet.probing import run_tool
from trivet.runners.planner import Costs, plan_memory
from trivet.runners.step_shape import resolve_dtype
from trivet.runners.supported import check_adapters, check_block_size, check_model
from trivet.self_test import OpOutcome
from trivet.weights.index import WeightIndex
from trivet_ascend.detection import Npu, find_npus, find_versions, memory_bandwidth
from trivet_ascend.memory_plan import HCCL_BUFFER_MB, Shape, fixed_parts, kv_cache_spec, most_blocks
from trivet_ascend.npu_smi import Chip, parse_info, parse_processes
from trivet_ascend.options import AscendOptions
from trivet_ascend.pairing import advices, installed_torch_npu
from trivet_ascend.weight_kinds import FOUR_BIT_FORMATS, WeightKind

BLOCK_SIZE = 128  # tokens; the attention operation wants multiples of 128, at most 512
BLOCK_SIZES = (128, 256, 384, 512)
SUPPORTED_FAMILIES = ("A2", "A3")
FAMILY_LACKS = {
    "910A": "which has no bfloat16 and none of the fused attention",
    "310P": "which has attention of its own (ATB), other cache layouts and float16 only",
    "310": "an older chip for single inputs",
    "310B": "a chip for edge devices with other operations",
    "A5": "whose operations nobody has checked yet",
}
# 910A and 310P have no bfloat16 arithmetic.
DTYPES = {"910A": frozenset({"f32", "f16"}), "310P": frozenset({"f32", "f16"})}
OTHER_DTYPES = frozenset({"f32", "f16", "bf16"})


class AscendBackend:
    """Ascend NPUs, one device a chip (on A3: a die)."""

    name = "ascend"

    def __init__(self, root: Path = Path("/"), npu_smi: str = "npu-smi") -> None:
        self._root, self._npu_smi = root, npu_smi

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """As the contract."""
        versions = find_versions(self._root)
        return [_device(npu, versions) for npu in find_npus(self._root, self._npu_smi, timeout_s / 2)]

    def absent_because(self, timeout_s: float = 5.0) -> str:
        """Why `probe` finds no device, for `trivet doctor`; empty where it finds one."""
        if find_npus(self._root, self._npu_smi, timeout_s / 2):
            return ""
        return "no Ascend NPU: no accelerator of PCI vendor 0x19e5 on the bus, no /dev/davinci*, no npu-smi"

    def advice(self, installed: Mapping[str, str], timeout_s: float = 5.0) -> list[Advice]:
        """For `trivet doctor`: versions and what pairs with what; nothing where there is no NPU."""
        npus = find_npus(self._root, self._npu_smi, timeout_s / 2)
        if not npus:
            return []
        return list(advices(dict(find_versions(self._root)), installed.get("torch-npu")))

    def usage(self, timeout_s: float = 5.0) -> dict[str, DeviceUsage]:
        """By uid, what npu-smi says now; empty where it says nothing. Never raises."""
        text = run_tool([self._npu_smi, "info"], timeout_s).text
        users = parse_processes(text)
        return {
            chip.uid: _usage(chip, None if users is None else users.get((chip.npu, chip.chip), ()))
            for chip in parse_info(text)
        }

    def bandwidth(self, device: DeviceInfo) -> float | None:
        """As `optional_contract.TellsBandwidth`."""
        return memory_bandwidth(device.name, device.arch)

    def self_test(self, device: int) -> Iterator[OpOutcome]:
        """As `trivet.self_test.TestsItself`."""
        from trivet_ascend.npu_device import NpuDevice
        from trivet_ascend.op_table import NPU
        from trivet_ascend.self_test import run_full

        yield from run_full(NPU, NpuDevice(device).torch_device)

    def self_test_versions(self) -> dict[str, str]:
        """As `trivet.self_test.TestsItself`."""
        return {"torch-npu": installed_torch_npu() or "not installed", **dict(find_versions(self._root))}

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Logical ids, ascending: in another order torch_npu reports no device at all (Trinity-RFT #618)."""
        visible = ",".join(str(index) for index in sorted(device.index for device in devices))
        return {
            "ASCEND_RT_VISIBLE_DEVICES": visible,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # the runner imports it and explains errors
            "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
            "TASK_QUEUE_ENABLE": "1",
            "HCCL_BUFFSIZE": str(HCCL_BUFFER_MB),  # as the plan reserves
            "OMP_NUM_THREADS": "1",  # many ranks on one host; the arithmetic is the NPU's
        }

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """As the contract; also WeightsError where the files do not match the spec."""
        if device.arch not in SUPPORTED_FAMILIES:
            raise Unsupported(_why_not_family(device.name, device.arch))
        shape = resolve_shape(spec, config, device)
        if config.kv_dtype not in ("auto", shape.dtype):
            raise Unsupported(
                f"kv_cache_dtype {config.kv_dtype!r} is not supported on Ascend with dtype {shape.dtype}; "
                "leave it at auto"
            )
        check_block_size(shape.block_size, BLOCK_SIZES, "Ascend")
        check_adapters(spec, config)
        check_model(spec, weights, shape.num_ranks, "Ascend")
        _check_ranks(spec, shape.num_ranks)
        _check_weights(weights, shape)

    def plan(
        self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        """As the contract, for the device with the least free memory."""
        device = min(devices, key=lambda each: each.free_bytes)
        self.check(spec, weights, config, device)
        shape = resolve_shape(spec, config, device)
        costs = Costs(
            kv_cache_spec(spec, shape),
            partial(fixed_parts, spec, weights),
            devices="NPUs",
            smaller="weights=w8a16 or a smaller model",
            most_blocks=most_blocks(spec, shape),
        )
        return plan_memory(config, shape, device, costs)

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """Opens the NPU. Raises: BackendError with what to do where torch-npu or CANN do not work."""
        from trivet.runners.ranks import TensorParallelRunner
        from trivet_ascend.npu_device import NpuDevice
        from trivet_ascend.ranks import open_npu
        from trivet_ascend.runner import AscendRunner

        if config.tensor_parallel > 1:
            return TensorParallelRunner(spec, config, plan, devices, open_npu)
        return AscendRunner(spec, plan, runner_shape(spec, config, plan, devices), NpuDevice(0))


def resolve_shape(spec: ModelSpec, config: RunnerConfig, device: DeviceInfo) -> Shape:
    """The config with every choice made. Raises: Unsupported."""
    return Shape.resolved(
        spec,
        config,
        block_size=BLOCK_SIZE,
        dtype=resolve_dtype(config.dtype, device),
        options=AscendOptions.parse(config.options),
    )


def runner_shape(
    spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
) -> Shape:
    """With the length that the plan settled on. Raises: Unsupported."""
    return resolve_shape(spec, config, devices[0]).with_max_model_len(plan.max_model_len)


def _check_ranks(spec: ModelSpec, num_ranks: int) -> None:
    if num_ranks > 1 and any(layer.attention.alibi for layer in spec.kinds):
        raise Unsupported(f"tensor_parallel_size {num_ranks} is not supported with ALiBi; use 1")


def _check_weights(weights: WeightIndex, shape: Shape) -> None:
    option = shape.options.weights
    if option != WeightKind.PLAIN and shape.dtype == "f32":
        raise Unsupported(f"options.weights={option} needs bfloat16 or float16; leave dtype at auto")
    if option == WeightKind.W4A16 and not any(t.format in FOUR_BIT_FORMATS for t in weights.tensors):
        raise Unsupported(
            f"options.weights={option} keeps the 4 bits of a GGUF file in {' or '.join(FOUR_BIT_FORMATS)}, "
            "and this model has no such tensor; use w8a16, or plain"
        )


def _why_not_family(name: str, family: str) -> str:
    supported = "the Ascend backend runs on Atlas A2 and A3 (910B, 910C): use one of these, or backend cpu"
    if family == "unknown":
        return f"{name} is of no family that Trivet knows; {supported}"
    return f"{name} is of family {family}, {FAMILY_LACKS.get(family, 'whose operations differ')}; {supported}"


def _usage(chip: Chip, users: tuple[DeviceUser, ...] | None) -> DeviceUsage:
    return DeviceUsage(
        used_bytes=chip.used_bytes,
        total_bytes=chip.total_bytes,
        utilisation_percent=chip.utilisation_percent,
        temperature_c=chip.temperature_c,
        power_w=chip.power_w,
        users=users,
    )


def _device(npu: Npu, versions: tuple[tuple[str, str], ...]) -> DeviceInfo:
    fault = npu.fault
    if not fault and npu.family not in SUPPORTED_FAMILIES:
        fault = _why_not_family(npu.name, npu.family)
    return DeviceInfo(
        kind=AscendBackend.name,
        index=npu.index,
        uid=npu.uid,
        name=npu.name,
        arch=npu.family,
        total_bytes=npu.total_bytes,
        free_bytes=npu.free_bytes,
        dtypes=DTYPES.get(npu.family, OTHER_DTYPES),
        versions=versions,
        unusable_because=fault or None,
    )
