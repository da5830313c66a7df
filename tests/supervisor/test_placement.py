from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from trivet.contract import DeviceInfo, MemoryPart, Peaks, Runner, RunnerConfig
from trivet.demo_model import find_demo_model
from trivet.engine.ledger import Holding, Ledger
from trivet.engine.measured_peaks import PeakStore
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit, ModelFilesError, Unsupported
from trivet.models.model_files import open_model
from trivet_registry.database import Database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.models_store import register_model, remove_model
from trivet_registry.tables import Version
from trivet_supervisor import placement
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.placement import NoRoom
from trivet_supervisor.reconcile import Reconciler

sys.path.append(str(Path(__file__).parent))  # made_up_backend
from made_up_backend import MadeUp, device, placer

if TYPE_CHECKING:
    from conftest import Site

NOBODY = Ledger()


def held(index: int, size: int, *, is_taken: bool = False) -> Holding:
    return Holding("qwen", "abcd", "cuda", (f"cuda{index}",), size, is_taken)


AUTO = EngineSettings()


@pytest.fixture
def version(database: Database) -> Version:
    with database.session() as session:
        return register_model(session, open_model(find_demo_model()))


def test_auto_takes_the_first_backend_in_order_that_can(version: Version) -> None:
    cpu, cuda = MadeUp("cpu", [device("cpu")]), MadeUp("cuda", [device("cuda")])
    assert placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY).backend.name == "cuda"
    cuda.devices = [device("cuda", unusable_because="no driver")]
    assert placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY).backend.name == "cpu"
    cuda.devices, cuda.need = [device("cuda")], 2000
    assert placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY).backend.name == "cpu"
    cuda.need, cuda.refuses = 1, "no bf16"
    assert placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY).backend.name == "cpu"


class Measured:
    """A runner that has warmed up."""

    def peaks(self) -> dict[str, int]:
        return {"activations": 7}


def test_a_plan_is_told_what_an_earlier_start_on_such_a_device_has_measured(
    version: Version, tmp_path: Path
) -> None:
    """Not one on another host: its engine keeps them elsewhere, and would plan otherwise."""
    store, cuda = PeakStore(tmp_path / "peaks"), MadeUp("cuda", [device("cuda")])
    placed = placer(cuda, peaks=store).place(version, AUTO, "auto", None, NOBODY)
    assert cuda.config is not None
    assert cuda.config.peaks == ()
    store.keep(cast("Runner", Measured()), open_model(find_demo_model()), placed)
    placed = placer(cuda, peaks=store).place(version, AUTO, "auto", None, NOBODY)
    plan = placed.plan
    known = (Peaks(plan.max_num_batched_tokens, plan.max_model_len, (MemoryPart("activations", 7),)),)
    assert cuda.config.peaks == known
    assert placed.config.peaks == ()  # of the deployment's settings they are no part
    cuda.devices = [device("cuda", host="far", uid="far/cuda0")]
    placer(cuda, peaks=store).place(version, AUTO, "auto", None, NOBODY)
    assert cuda.config.peaks == ()


def test_auto_never_takes_null(version: Version) -> None:
    with pytest.raises(Unsupported):
        placer(MadeUp("null", [device("null")])).place(version, AUTO, "auto", None, NOBODY)
    placed = placer(MadeUp("null", [device("null")])).place(version, AUTO, "null", None, NOBODY)
    assert placed.backend.name == "null"


def test_each_backends_own_reason_is_told_when_none_can(version: Version) -> None:
    cpu = MadeUp("cpu", [device("cpu")], need=5000)
    cuda = MadeUp("cuda", [device("cuda", unusable_because="driver 470 is too old")])
    with pytest.raises(DoesNotFit) as caught:
        placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY)
    assert "it needs 5000 bytes and 1000 are free on cpu0" in str(caught.value)
    assert str(caught.value).endswith("; no usable device: cuda (cuda0: driver 470 is too old)")
    cuda.devices = []
    with pytest.raises(DoesNotFit, match=r"here: cpu: it needs 5000 .* on cpu0; no usable device: cuda$"):
        placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY)


def test_a_reason_names_the_model_and_not_its_folder(database: Database) -> None:
    with database.session() as session:
        version = register_model(session, open_model(find_demo_model()), "tiny")
    both = placer(*(MadeUp(name, [device(name)], refuses="no bf16") for name in ("cpu", "cuda")))
    with pytest.raises(Unsupported, match="no backend can run tiny:1 here"):
        both.place(version, AUTO, "auto", None, NOBODY)
    with pytest.raises(Unsupported, match="tokens that tiny:1 was made for"):
        both.place(version, EngineSettings(max_model_len=99_999), "auto", None, NOBODY)


class Faulty(MadeUp):
    """A stranger's backend that does not keep the contract."""

    def check(self, spec: Any, weights: Any, config: RunnerConfig, device: DeviceInfo) -> None:
        raise KeyError("vram")


def test_a_faulty_backend_is_named_and_auto_goes_on_to_the_next(version: Version) -> None:
    cpu, cuda = MadeUp("cpu", [device("cpu")]), Faulty("cuda", [device("cuda")])
    assert placer(cpu, cuda).place(version, AUTO, "auto", None, NOBODY).backend.name == "cpu"
    with pytest.raises(Unsupported, match=r"backend cuda is faulty: check raised KeyError: 'vram'"):
        placer(cpu, cuda).place(version, AUTO, "cuda", None, NOBODY)


def test_a_plan_that_is_none_is_a_reason(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = MadeUp("cuda", [device("cuda")])
    monkeypatch.setattr(cuda, "plan", lambda *_: None)
    with pytest.raises(Unsupported, match=r"cuda is faulty: plan returned None and must return a MemoryPlan"):
        placer(cuda).place(version, AUTO, "cuda", None, NOBODY)


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("plan", "plan returned None and must return a MemoryPlan"),
        ("launch_env", "cuda is faulty: launch_env returned None"),
    ],
)
def test_a_launch_on_a_faulty_backend_ends_failed_with_the_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch, member: str, told: str
) -> None:
    cuda = MadeUp("cuda", [device("cuda")])
    monkeypatch.setattr(cuda, member, lambda *_: None)
    with site.database.session() as session:
        version = register_model(session, open_model(find_demo_model()), "smol")
        create_deployment(session, name="chat", version=version, backend="cuda")
    site.reconciler = Reconciler(site.means, placer(cuda))
    site.settle()
    assert site.states() == ["failed"]
    assert told in site.only().reason
    assert not site.launcher.processes


def test_a_context_that_the_model_was_not_made_for_is_told_once(version: Version) -> None:
    host = placer(MadeUp("cpu", [device("cpu")]), MadeUp("cuda", []))
    with pytest.raises(Unsupported) as caught:
        host.place(version, EngineSettings(max_model_len=99_999), "auto", None, NOBODY)
    assert str(caught.value).startswith("max_model_len 99999 is beyond the 8192 tokens that SmolLM2")
    assert str(caught.value).endswith("set at most 8192")


def test_backends_are_tried_in_the_order_that_is_asked_for(version: Version) -> None:
    cpu, cuda = MadeUp("cpu", [device("cpu")]), MadeUp("cuda", [device("cuda")], need=2000)
    place = placer(cpu, cuda).place
    assert place(version, AUTO, "ascend,cuda,cpu", None, NOBODY).backend is cpu
    cuda.need = 100
    assert place(version, AUTO, "ascend,cuda,cpu", None, NOBODY).backend is cuda
    assert place(version, AUTO, "cpu,cuda", None, NOBODY).backend is cpu
    with pytest.raises(Unsupported, match="'ascend' is not installed"):
        place(version, AUTO, "ascend", None, NOBODY)


def test_an_explicit_backend_is_honoured_or_its_reason_told(version: Version) -> None:
    cpu, cuda = MadeUp("cpu", [device("cpu")]), MadeUp("cuda", [])
    with pytest.raises(Unsupported, match=r"backend cuda has no usable device here \(it found none\)"):
        placer(cpu, cuda).place(version, AUTO, "cuda", None, NOBODY)
    with pytest.raises(Unsupported, match=r"'tpu' is not installed; installed: cpu, cuda"):
        placer(cpu, cuda).place(version, AUTO, "tpu", None, NOBODY)


@pytest.mark.parametrize("name", ["1", "cuda1"])
def test_an_explicit_device_is_honoured(version: Version, name: str) -> None:
    cuda = MadeUp("cuda", [device("cuda", 0), device("cuda", 1, free_bytes=500)])
    placed = placer(cuda).place(version, AUTO, "cuda", name, NOBODY)
    assert [d.uid for d in placed.devices] == ["cuda1"]


def test_an_unknown_or_unusable_device_is_told(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda", 0), device("cuda", 1, unusable_because="ECC error")])
    with pytest.raises(Unsupported, match=r"no device '7'; it has: 0 \(cuda0\)"):
        placer(cuda).place(version, AUTO, "cuda", "7", NOBODY)
    with pytest.raises(Unsupported, match="ECC error"):
        placer(cuda).place(version, AUTO, "cuda", "1", NOBODY)


def test_the_device_with_most_room_is_taken(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda", 0), device("cuda", 1, free_bytes=900)])
    assert placer(cuda).place(version, AUTO, "cuda", None, NOBODY).devices[0].index == 0
    loading = Ledger([held(0, 300)])
    assert placer(cuda).place(version, AUTO, "cuda", None, loading).devices[0].index == 1


def test_tensor_parallelism_takes_as_many_devices(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda", n, free_bytes=400 + n) for n in range(4)])
    settings = EngineSettings(tensor_parallel_size=2)
    placed = placer(cuda).place(version, settings, "cuda", None, NOBODY)
    assert [d.index for d in placed.devices] == [3, 2]
    with pytest.raises(
        Unsupported, match="4 usable devices here and tensor_parallel_size 8 needs 8; set at most 4"
    ):
        placer(cuda).place(version, EngineSettings(tensor_parallel_size=8), "cuda", None, NOBODY)


def test_tensor_parallelism_takes_the_devices_that_others_have_left(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda", n) for n in range(4)], need=800)
    promised = Ledger([held(0, 900), held(1, 900)])
    placed = placer(cuda).place(version, EngineSettings(tensor_parallel_size=2), "cuda", None, promised)
    assert [d.index for d in placed.devices] == [2, 3]


@pytest.mark.parametrize(
    ("named", "num_ranks", "told"),
    [
        ("0", 2, r"device '0' is 1 device and tensor_parallel_size 2 needs 2; name as many, or set tens"),
        ("0,1", 1, r"device '0,1' is 2 devices and tensor_parallel_size 1 needs 1; .*_parallel_size=2$"),
        ("0,0", 2, r"device '0,0' names cuda0 twice; each rank needs one of its own"),
        ("0,cuda0", 2, r"device '0,cuda0' names cuda0 twice"),
    ],
)
def test_as_many_devices_are_named_as_there_are_ranks(
    version: Version, named: str, num_ranks: int, told: str
) -> None:
    cuda = MadeUp("cuda", [device("cuda", n) for n in range(4)])
    with pytest.raises(Unsupported, match=told):
        placer(cuda).place(version, EngineSettings(tensor_parallel_size=num_ranks), "cuda", named, NOBODY)
    placed = placer(cuda).place(version, EngineSettings(tensor_parallel_size=2), "cuda", "3, cuda1", NOBODY)
    assert [d.index for d in placed.devices] == [3, 1]


def test_lack_of_room_through_other_instances_is_worth_waiting_for(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda")], need=800)
    taken = Ledger([held(0, 300)])
    with pytest.raises(NoRoom, match=r"700 are free on cuda0; it would fit without qwen \(abcd"):
        placer(cuda).place(version, AUTO, "cuda", None, taken)
    cuda.need = 5000
    with pytest.raises(DoesNotFit) as caught:
        placer(cuda).place(version, AUTO, "cuda", None, NOBODY)
    assert not isinstance(caught.value, NoRoom)


def test_every_device_says_why_not(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda"), device("cuda", 1)], need=800)
    taken = Ledger([held(0, 300), held(1, 290, is_taken=True)])
    with pytest.raises(NoRoom, match=r"cuda1: it needs 800.* cuda0: it needs 800"):
        placer(cuda).place(version, AUTO, "cuda", None, taken)


def test_a_model_that_no_stopping_of_others_would_fit_is_not_waited_for(version: Version) -> None:
    cuda = MadeUp("cuda", [device("cuda")], need=5000)
    taken = Ledger([held(0, 300, is_taken=True)])
    with pytest.raises(DoesNotFit) as caught:
        placer(cuda).place(version, AUTO, "cuda", None, taken)
    assert not isinstance(caught.value, NoRoom)


def test_one_hopeless_device_does_not_hide_another_that_fits(version: Version) -> None:
    small = device("cuda", 0, total_bytes=50, free_bytes=50)
    cuda = MadeUp("cuda", [small, device("cuda", 1, free_bytes=40)])
    taken = Ledger([held(0, 1, is_taken=True), held(1, 960, is_taken=True)])
    with pytest.raises(NoRoom, match="cuda1"):
        placer(cuda).place(version, AUTO, "cuda", None, taken)


class ByKind(MadeUp):
    """A backend that refuses what an older device cannot."""

    def check(self, spec: Any, weights: Any, config: RunnerConfig, device: DeviceInfo) -> None:
        if device.arch == "old":
            raise Unsupported(f"fp8 needs a newer device than {device.uid}")


def test_a_device_that_cannot_run_it_does_not_hide_another_that_can(version: Version) -> None:
    """The first is the one with most room."""
    devices = [device("cuda", 0, arch="old"), device("cuda", 1, free_bytes=900)]
    cuda = ByKind("cuda", devices)
    placed = placer(cuda).place(version, AUTO, "cuda", None, NOBODY)
    assert placed.devices == (devices[1],)
    cuda.need = 950
    with pytest.raises(DoesNotFit, match=r"cuda0: fp8 needs a newer.*; cuda1: it needs 950 bytes"):
        placer(cuda).place(version, AUTO, "cuda", None, NOBODY)
    cuda.devices = [replace(each, arch="old") for each in devices]
    with pytest.raises(Unsupported, match=r"cuda0: fp8 needs .*; cuda1: fp8 needs"):
        placer(cuda).place(version, AUTO, "cuda", None, NOBODY)


def test_a_changed_or_missing_file_is_never_loaded(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(find_demo_model().read_bytes())
    with database.session() as session:
        version = register_model(session, open_model(file))
    cpu = placer(MadeUp("cpu", [device("cpu")]))
    assert cpu.place(version, AUTO, "cpu", None, NOBODY)
    os.utime(file, ns=(1, 1))
    with pytest.raises(ModelFilesError, match=r"model.gguf has changed since it was registered"):
        cpu.place(version, AUTO, "cpu", None, NOBODY)
    file.unlink()
    with pytest.raises(ModelFilesError, match=r"model.gguf cannot be read"):
        cpu.place(version, AUTO, "cpu", None, NOBODY)


def test_another_model_with_the_id_of_a_removed_one_is_planned_by_its_own_files(
    database: Database, tmp_path: Path
) -> None:
    backend = MadeUp("cpu", [device("cpu")])
    cpu = placer(backend)
    ids = []
    for name in ("first", "second"):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(find_demo_model().read_bytes())
        with database.session() as session:
            version = register_model(session, open_model(file), name)
        ids.append(version.id)
        assert cpu.place(version, AUTO, "cpu", None, NOBODY)
        with database.session() as session:
            remove_model(session, name)
        assert {Path(tensor.file) for tensor in backend.weights.tensors} == {file}
    if database.engine.dialect.name == "sqlite":  # PostgreSQL gives none twice
        assert ids[0] == ids[1], "SQLite gives the id of a removed row to the next"


def test_placings_at_once_share_what_is_opened(
    version: Version, monkeypatch: pytest.MonkeyPatch, database: Database, tmp_path: Path
) -> None:
    """Each has a thread of its own, and more models than are kept open."""
    monkeypatch.setattr(placement, "MAX_OPEN_MODELS", 1)
    opened = open_model(find_demo_model())
    monkeypatch.setattr(placement, "open_model", lambda path, host: opened)
    versions = []
    for number in range(4):
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(find_demo_model().read_bytes()[: 1 << 20])
        with database.session() as session:
            versions.append(register_model(session, replace(opened, path=file, files=(file,)), f"m{number}"))
    cpu = placer(MadeUp("cpu", [device("cpu")]))
    cpu._opened = Yielding()
    with ThreadPoolExecutor(8) as pool:
        places = pool.map(lambda n: cpu.place(versions[n % 4], AUTO, "cpu", None, NOBODY), range(100))
        assert all(place.backend.name == "cpu" for place in places)


class Yielding(OrderedDict[str, Any]):
    """Lets other threads go on as soon as something is in it."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        time.sleep(0.001)


def test_a_probe_is_used_for_a_moment_and_then_repeated(clock: Any) -> None:
    backend = MadeUp("cpu", [device("cpu")])
    table = DeviceTable({"cpu": backend}, clock)
    for _ in range(3):
        table.of(backend)
        clock.advance(0.9)
    assert backend.num_probes == 1
    clock.advance(1)
    assert table.all() == backend.devices
    assert backend.num_probes == 2
