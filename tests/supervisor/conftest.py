"""A supervisor without processes: clock, launcher, wire and placement are the test's own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from trivet.config import Settings
from trivet.contract import DeviceInfo, KVCacheSpec, KVGroup, KVKind, MemoryPart, MemoryPlan, RunnerConfig
from trivet.endpoints import Endpoints
from trivet.engine.ledger import Ledger
from trivet.engine.placement import Placement
from trivet.engine_settings import EngineSettings
from trivet.messages import Beat, ControlRequest, Phase, Watch
from trivet.weights.index import WeightIndex
from trivet_registry.database import Database, open_database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import list_instances
from trivet_registry.models_store import register_model
from trivet_registry.references import find_version
from trivet_registry.tables import Base, Event, Instance, Version
from trivet_supervisor import arrivals, fences, placing
from trivet_supervisor.means import Means
from trivet_supervisor.reconcile import Reconciler

sys.path.append(str(Path(__file__).parent))  # fake_launcher
from fake_launcher import LISTENS, FakeLauncher, FakeProcess

DEADLINE_S = 60.0
HOST = DeviceInfo(
    kind="fake",
    index=0,
    uid="host",
    name="a device",
    arch="",
    total_bytes=1 << 30,
    free_bytes=1 << 30,
    dtypes=frozenset({"f32"}),
)
PLAN = MemoryPlan(
    kv=KVCacheSpec(16, (KVGroup(KVKind.FULL, (0,), "f32", 64),)),
    num_blocks=(100,),
    num_host_blocks=0,
    parts=(MemoryPart("weights", 1000), MemoryPart("kv", 2000)),
    max_num_batched_tokens=256,
    max_model_len=2048,
)


class FakeClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class FakeWire:
    """What engines say is put into `inbox`; what they are told stands in `sent`, without the watches."""

    def __init__(self) -> None:
        self.followed: set[str] = set()
        self.endpoints: dict[str, Endpoints] = {}
        self.inbox: list[Beat] = []
        self.sent: list[tuple[str, ControlRequest]] = []
        self.num_watches = 0

    def follow(self, instance_id: str, endpoints: Endpoints) -> None:
        self.followed.add(instance_id)
        self.endpoints[instance_id] = endpoints

    def forget(self, instance_id: str) -> None:
        self.followed.discard(instance_id)

    def tell(self, instance_id: str, request: ControlRequest) -> None:
        if isinstance(request, Watch):
            self.num_watches += 1
        else:
            self.sent.append((instance_id, request))

    def beats(self) -> list[Beat]:
        heard, self.inbox = self.inbox, []
        return [beat for beat in heard if beat.instance_id in self.followed]


class FakePlaces:
    """Places everything on one device, or raises `refuses`."""

    def __init__(self) -> None:
        self.refuses: Exception | None = None
        self.host = ""  # of the device
        self.fits_without_older = False  # though it refuses
        self.backend = FakeBackend()
        self.ledgers: list[Ledger] = []

    def place(
        self, version: Version, settings: EngineSettings, backend: str, device: str | None, ledger: Ledger
    ) -> Placement:
        self.ledgers.append(ledger)
        if self.refuses is not None and not (self.fits_without_older and ledger.gone):
            raise self.refuses
        device = replace(HOST, host=self.host, uid=f"{self.host}/{HOST.uid}") if self.host else HOST
        return Placement(self.backend, (device,), RunnerConfig(), PLAN)


class FakeBackend:
    """Only what an engine's environment needs."""

    name = "fake"

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        return [HOST]

    def launch_env(self, devices: Any) -> dict[str, str]:
        return {"FAKE_DEVICES": ",".join(device.uid for device in devices)}

    def check(self, *_: Any) -> None:
        raise NotImplementedError

    plan: Any = check
    create_runner: Any = check


@dataclass
class Site:
    """A supervisor over fakes, and the verbs that tests are written in."""

    database: Database
    settings: Settings
    clock: FakeClock = field(default_factory=FakeClock)
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    wire: FakeWire = field(default_factory=FakeWire)
    places: FakePlaces = field(default_factory=FakePlaces)
    # Of those who have ended, who has memory on the device; None: it has not been asked since.
    holders: frozenset[int] | None = frozenset()

    def __post_init__(self) -> None:
        self.start_supervisor()

    def start_supervisor(self) -> None:
        """A new one over the same registry and engines, as after a crash."""
        self.wire.followed.clear()
        self.means = Means(
            self.database,
            self.settings,
            self.launcher,
            self.wire,
            self.clock,
            inherited={"PATH": "/bin"},
            memory_holders=lambda *_: self.holders,
        )
        self.reconciler = Reconciler(self.means, self.places)

    def launch(self, name: str = "chat", replicas: int = 1, **fields: Any) -> None:
        with self.database.session() as session:
            create_deployment(
                session, name=name, version=find_version(session, "tiny"), replicas=replicas, **fields
            )

    def change(self, function: Callable[..., Any], *arguments: Any, **fields: Any) -> None:
        with self.database.session() as session:
            function(session, *arguments, **fields)

    def settle(self) -> None:
        """Turn until nothing moves, as the process does."""
        for _ in range(200):
            if not self.reconciler.tick():
                return
        raise AssertionError("the supervisor does not come to rest")

    def settle_at(self, states: list[str]) -> None:
        """Turn until those are the states: where placings hang, the others' may take longer than a turn."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.settle() or sorted(self.states()) != states:
            assert time.monotonic() < deadline_s, f"{self.states()} and not {states}"
            time.sleep(0.01)

    def wait(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time pass in turns."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.advance(min(step_s, end_s - self.clock.now_s))
            self.settle()

    def instances(self, state: InstanceState | None = None) -> list[Instance]:
        with self.database.reading() as session:
            return list(list_instances(session, states=None if state is None else [state]))

    def events(self) -> list[Event]:
        with self.database.reading() as session:
            return list(list_events(session))

    def only(self) -> Instance:
        (instance,) = self.instances()
        return instance

    def states(self) -> list[str]:
        return [instance.state for instance in self.instances()]

    @property
    def process(self) -> FakeProcess:
        return self.launcher.processes[-1]

    def say(self, phase: Phase, instance: Instance | None = None, **fields: Any) -> None:
        """A beat from an instance, and what follows from it."""
        instance = instance or self.only()
        beat = Beat(instance.id, instance.lease or "", instance.pid or 0, 1, phase)
        self.wire.inbox.append(replace_fields(beat, fields))
        self.settle()

    def make_ready(self, name: str = "chat", replicas: int = 1, **fields: Any) -> None:
        self.launch(name, replicas, **fields)
        self.settle()
        for instance in self.instances(InstanceState.STARTING):
            self.say(Phase.READY, instance)

    def keep_alive(self, seconds: float, step_s: float = 1.0) -> None:
        """Let time pass while every ready engine beats."""
        for _ in range(int(seconds / step_s)):
            self.clock.advance(step_s)
            for instance in self.instances(InstanceState.READY):
                self.say(Phase.READY, instance)


def replace_fields(beat: Beat, fields: dict[str, Any]) -> Beat:
    import msgspec

    return msgspec.structs.replace(beat, **fields)


@dataclass(frozen=True)
class Files:
    """What the registry reads of `trivet.models.model_files.ModelFiles`."""

    path: Path
    files: tuple[Path, ...]
    name: str = "tiny"
    format: str = "gguf"
    architecture: str = "llama"
    quantization: str = "q4_1"
    context_length: int = 2048
    size_bytes: int = 4
    licence: str | None = None
    spec: None = None
    chat_template: str | None = None
    weights: WeightIndex = field(default_factory=lambda: WeightIndex(()))
    config: dict[str, object] = field(default_factory=dict)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def registry(
    tmp_path_factory: pytest.TempPathFactory, new_registry_url: Callable[[Path], str]
) -> Iterator[Database]:
    """Opened once: SQLAlchemy then compiles each statement once."""
    opened = open_database(new_registry_url(tmp_path_factory.mktemp("registry")), is_durable=False)
    yield opened
    opened.close()


@pytest.fixture
def database(registry: Database) -> Database:
    """The registry with nothing in it."""
    with registry.session() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    return registry


@pytest.fixture
def site(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Site:
    # A turn takes what placing answers at once, and here that is all: also where its thread is starved.
    for patient, name in (
        (placing, "PATIENCE_S"),
        (arrivals, "PATIENCE_S"),
        (arrivals, "FAR_PATIENCE_S"),
        (fences, "PATIENCE_S"),
    ):
        monkeypatch.setattr(patient, name, DEADLINE_S)
    settings = Settings(home=str(tmp_path))
    settings.paths.create()
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    with database.session() as session:
        register_model(session, Files(file, (file,)))  # type: ignore[arg-type]
    return Site(database, settings)


@pytest.fixture
def far(site: Site) -> Site:
    """One engine on host b, ready."""
    site.places.host = "b"
    site.launch()
    site.settle()
    site.process.listens = LISTENS
    site.settle()
    site.say(Phase.READY)
    return site


@pytest.fixture
def device() -> DeviceInfo:
    return replace(HOST)
