"""Answers of devices, with a backend whose needs are plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trivet.contract import (
    DeviceInfo,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    RunnerConfig,
)
from trivet.demo_model import find_demo_model
from trivet.engine.capacity import Capacity, Change, DeviceAnswer
from trivet.engine.ledger import Holding, Ledger
from trivet.engine_settings import EngineSettings, parse_engine_settings
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet.prober import Prober

WEIGHTS = 400
BLOCK = 16


class MadeUp:
    """Weights take 400 bytes, half of them in w8a16; KV takes a byte a token, half of it as int8."""

    def __init__(self, name: str, *devices: DeviceInfo) -> None:
        self.name = name
        self.devices = list(devices)

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        return self.devices

    def bandwidth(self, device: DeviceInfo) -> float:
        return 8000.0

    def check(self, spec: Any, weights: Any, config: RunnerConfig, device: DeviceInfo) -> None:
        if config.kv_dtype not in ("auto", "int8") or config.dtype != "auto":
            raise Unsupported("no such type")
        if set(config.options.values()) - {"w8a16"}:
            raise Unsupported("no such option")

    def plan(
        self, spec: Any, weights: Any, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        length = config.max_model_len or 512
        token_bytes = 1 if config.kv_dtype == "auto" else 0.5
        size = WEIGHTS // (2 if config.options else 1)
        kv = int((length if config.num_blocks is None else config.num_blocks * BLOCK) * token_bytes)
        if size + kv > devices[0].free_bytes:
            raise DoesNotFit(f"it needs {size + kv} and {devices[0].free_bytes} are free")
        group = KVGroup(KVKind.FULL, (0,), config.kv_dtype, 1)
        parts = (MemoryPart("weights", size), MemoryPart("kv", kv))
        return MemoryPlan(KVCacheSpec(BLOCK, (group,)), (1 + length // BLOCK,), 0, parts, 256, length)


def device(kind: str, free: int, index: int = 0, total: int = 1000) -> DeviceInfo:
    return DeviceInfo(kind, index, f"{kind}{index}", "", "", total, free, frozenset({"bf16"}))


def holding(name: str, size: int, *, is_taken: bool = True) -> Holding:
    return Holding(name, name[0], "cuda", ("cuda0",), size, is_taken)


def one_beside_the_host(host_bytes: int) -> Holding:
    return Holding("g", "g", "cuda", ("cuda0",), 500, is_taken=False, host_bytes=host_bytes)


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_model(find_demo_model())


def ask(
    files: ModelFiles, *backends: MadeUp, claims: Sequence[Holding] = (), **settings: str
) -> list[DeviceAnswer]:
    host: Any = SimpleNamespace(
        backends={b.name: b for b in backends}, backend=lambda name: {b.name: b for b in backends}[name]
    )
    parsed: EngineSettings = parse_engine_settings(settings)
    return Capacity(files, parsed, Ledger(claims)).answers(host, Prober())


def settings_of(changes: Sequence[Change]) -> dict[str | None, str | None]:
    return {change.setting: change.value for change in changes if change.setting}


def test_memory_is_told_by_owner(files: ModelFiles) -> None:
    claims = [holding("ready", 100), holding("loading", 50, is_taken=False)]
    (answer,) = ask(files, MadeUp("cuda", device("cuda", 700)), claims=claims, max_model_len="128")
    assert (answer.ours_bytes, answer.others_bytes, answer.left_bytes) == (150, 200, 650)
    assert answer.fits


def test_what_engines_of_other_devices_take_of_the_host_is_not_planned_for(files: ModelFiles) -> None:
    host = replace(device("cpu", 700), is_host_memory=True)
    (answer,) = ask(files, MadeUp("cpu", host), claims=[one_beside_the_host(60)], max_model_len="128")
    assert (answer.ours_bytes, answer.left_bytes) == (60, 640)
    (answer,) = ask(files, MadeUp("cpu", host), claims=[one_beside_the_host(300)], max_model_len="128")
    assert [change.text for change in answer.changes if change.text.startswith("stop g (g)")]


def test_smaller_kv_weights_and_context_are_offered_if_they_do(files: ModelFiles) -> None:
    (answer,) = ask(files, MadeUp("cuda", device("cuda", 760)), max_model_len="512")
    assert settings_of(answer.changes) == {
        "kv_cache_dtype": "int8",
        "max_model_len": "352",
        "options.weights": "w8a16",
    }
    (tighter,) = ask(files, MadeUp("cuda", device("cuda", 500)), max_model_len="512")
    assert settings_of(tighter.changes) == {"max_model_len": "96"}, "neither of the others is enough alone"


def test_a_number_of_blocks_is_to_be_given_up_where_a_shorter_context_would_change_nothing(
    files: ModelFiles,
) -> None:
    backend = MadeUp("cuda", device("cuda", 760))
    (answer,) = ask(files, backend, max_model_len="128", num_gpu_blocks_override="100")
    assert settings_of(answer.changes) == {"num_gpu_blocks_override": "none"}


def test_the_smallest_instance_that_is_enough_is_to_be_stopped(files: ModelFiles) -> None:
    claims = [holding("large", 500), holding("tiny", 20), holding("middle", 200)]
    backend = MadeUp("cuda", device("cuda", 280))

    def stopped(max_model_len: str) -> list[str]:
        (answer,) = ask(files, backend, claims=claims, max_model_len=max_model_len)
        return [change.text for change in answer.changes if change.text.startswith("stop")]

    assert "stop middle (m)" in stopped("64")[0]
    assert "stop large (l)" in stopped("256")[0]
    assert "stop large (l), middle (m)" in stopped("512")[0]


def test_another_device_comes_first(files: ModelFiles) -> None:
    full, free = (
        MadeUp("cuda", device("cuda", 10), device("cuda", 760, 1)),
        MadeUp("cpu", device("cpu", 1000)),
    )
    *refused, placed = ask(files, full, free, max_model_len="512")
    assert placed.fits
    assert not placed.changes
    assert [answer.changes[0].text for answer in refused] == ["use cpu0 of cpu"] * 2
    assert [len(answer.changes) for answer in refused] == [1, 4]


def test_a_larger_share_is_offered_where_one_was_given(files: ModelFiles) -> None:
    class Shared(MadeUp):
        def plan(
            self, spec: Any, weights: Any, config: RunnerConfig, devices: Sequence[DeviceInfo]
        ) -> MemoryPlan:
            assert config.memory_fraction is not None
            share = DeviceInfo(
                "cuda", 0, "cuda0", "", "", 1000, int(1000 * config.memory_fraction), frozenset()
            )
            return super().plan(spec, weights, config, [share])

    (answer,) = ask(files, Shared("cuda", device("cuda", 1000)), gpu_memory_utilization="0.5")
    assert settings_of(answer.changes)["gpu_memory_utilization"] == "0.92"


def test_speeds_are_bytes_over_bandwidth(files: ModelFiles) -> None:
    (answer,) = ask(files, MadeUp("cuda", device("cuda", 1000)), max_model_len="160")
    assert answer.speed is not None
    assert answer.speed.one_stream == pytest.approx(8000 / (400 + 1))
    assert answer.speed.one_stream_full == pytest.approx(8000 / (400 + 160))
    assert answer.speed.all_streams_full == answer.speed.one_stream_full, "one sequence of full length fits"


def test_a_backend_without_devices_answers_all_the_same(files: ModelFiles) -> None:
    absent, present = ask(files, MadeUp("cuda"), MadeUp("cpu", device("cpu", 1000)))
    assert "no usable device" in (absent.reason or "")
    assert present.fits
