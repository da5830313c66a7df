"""A site in a short folder, engines without models in it, the application and the real server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import pytest
import zmq
from flask.testing import FlaskClient

from trivet.config import Settings, engine_address
from trivet.demo_model import find_demo_model
from trivet.models.model_files import ModelFiles, open_model
from trivet.tls import trust
from trivet_registry.database import Database, open_database
from trivet_registry.deployments_store import create_deployment, get_deployment
from trivet_registry.instance_state import InstanceState as State
from trivet_registry.instances_store import create_instance, move_instance
from trivet_registry.models_store import register_model
from trivet_web.app import create_app
from trivet_web.engines import routing
from trivet_web.models.served_models import ServedModel, load_served_model
from trivet_web.web_process import WebProcess

sys.path.append(str(Path(__file__).parent))  # raw_http, engine_forks
from engine_forks import EngineForks, ForkedEngine
from ports import free_port

OTHER_SERVER = Path(__file__).parent / "other_server.py"
MODEL = "demo"
MAX_MODEL_LEN = 512


class Eventually(Protocol):
    """Poll until the condition is true."""

    def __call__(
        self, condition: Callable[[], object], within_s: float = 20.0, what: str = "condition"
    ) -> None: ...


def wait_until(condition: Callable[[], object], within_s: float = 20.0, what: str = "condition") -> None:
    """Poll until it is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} not met within {within_s} s"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    return wait_until


@dataclass
class Engine:
    """A fake engine process; `pid` for signals."""

    instance: str
    process: ForkedEngine

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.process.close()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)


@dataclass
class Served:
    """A deployment and its engine."""

    model: str
    engine: Engine


@dataclass
class Site:
    """A home with a registry in which the model `demo` is deployed."""

    settings: Settings
    database: Database
    stack: ExitStack
    forks: EngineForks
    engines: list[Engine] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.settings.paths.run

    @property
    def token(self) -> str:
        return self.settings.paths.token_file.read_text().strip()

    def deploy(self, name: str = MODEL, replicas: int = 1, **settings: str) -> None:
        with self.database.session() as session:
            version = register_model(session, demo_files(), "smollm2")
            create_deployment(
                session, name=name, version=version, backend="null", replicas=replicas, settings=settings
            )

    def add_instance(self, *states: State, name: str = MODEL, reason: str = "") -> str:
        """An instance moved through `states`."""
        with self.database.session() as session:
            instance = create_instance(session, get_deployment(session, name))
            for state in states:
                values = {"plan": {"max_model_len": MAX_MODEL_LEN}} if state is State.READY else {}
                move_instance(session, instance.id, state, reason, **values)
            return instance.id

    def start_engine(self, *options: str, name: str = MODEL) -> Engine:
        """A ready instance with its process, which beats already, or has ended by what was asked of it."""
        instance = self.add_instance(State.PLACING, State.STARTING, State.READY, name=name)
        engine = Engine(instance, self.forks.start(str(self.run_dir), instance, *options))
        self.stack.callback(engine.close)
        self.engines.append(engine)
        self._wait_for_beat(engine)
        return engine

    def serve(self, *options: str) -> Served:
        """A deployment of its own with one engine."""
        name = f"m{len(self.engines)}"
        self.deploy(name)
        return Served(name, self.start_engine(*options, name=name))

    def _wait_for_beat(self, engine: Engine) -> None:
        with zmq.Context() as context, context.socket(zmq.SUB) as beats:
            beats.linger = 0
            beats.reconnect_ivl = 10
            beats.subscribe(b"")
            beats.connect(engine_address(self.run_dir, engine.instance, "beat"))
            wait_until(
                lambda: beats.poll(100) or engine.process.poll() is not None, what="the fake engine beats"
            )


@cache
def demo_files() -> ModelFiles:
    """The demo model, whose header is read once."""
    return open_model(find_demo_model())


NewSite = Callable[[], AbstractContextManager[Site]]


@contextmanager
def _new_site(
    new_registry_url: Callable[[Path], str], forks: EngineForks, disk: str | None
) -> Iterator[Site]:
    home = tempfile.mkdtemp(prefix="tv", dir=disk)  # socket paths are limited to 107 bytes
    settings = Settings(
        home=home, database_url=new_registry_url(Path(home)), drain_timeout_s=3.0, web_threads=64
    )
    settings.paths.create()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        database = open_database(settings.resolved_database_url)
        stack.callback(database.close)
        site = Site(settings, database, stack, forks)
        site.deploy()
        yield site


@pytest.fixture(autouse=True)
def _every_act_leaves_an_entry(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test does: what changed something is in the audit log (guard.py says so where it is not)."""
    yield
    missing = [r.getMessage() for r in caplog.get_records("call") if r.name == "trivet_web.guard"]
    assert not missing


@pytest.fixture(scope="session")
def engine_forks() -> Iterator[EngineForks]:
    forks = EngineForks()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def new_site(
    new_registry_url: Callable[[Path], str], engine_forks: EngineForks, quick_disk: str | None
) -> NewSite:
    """For fixtures of a wider scope."""
    return partial(_new_site, new_registry_url, engine_forks, quick_disk)


@pytest.fixture
def site(new_site: NewSite) -> Iterator[Site]:
    with new_site() as made:
        yield made


@pytest.fixture(scope="session")
def served_model() -> ServedModel:
    return load_served_model(str(find_demo_model()))


@pytest.fixture(scope="module")
def client(new_site: NewSite, served_model: ServedModel) -> Iterator[FlaskClient]:
    """Flask's test client of an application with one ready engine; for tests that change nothing."""
    with new_site() as made:
        made.start_engine()
        yield open_client(made, served_model)


@pytest.fixture
def site_client(site: Site, served_model: ServedModel) -> FlaskClient:
    """Flask's test client of the application in `site`."""
    return open_client(site, served_model)


def open_client(site: Site, served_model: ServedModel) -> FlaskClient:
    """Its routing table is never half a second old: what a test has just written is what is answered."""
    patch = pytest.MonkeyPatch()
    patch.setattr(routing, "MAX_AGE_S", 0.0)
    site.stack.callback(patch.undo)
    process = WebProcess(site.settings, load_model=lambda path: served_model)
    site.stack.callback(process.close)
    return create_app(site.settings, process).test_client()


@pytest.fixture(scope="session", name="open_client")
def client_maker() -> Callable[[Site, ServedModel], FlaskClient]:
    return open_client


@dataclass
class Server:
    """The real server."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metric(self, name: str, model: str = "") -> float:
        """The sum of all series of one name, or of those of one model."""
        lines = self.get("/metrics")[1].decode().splitlines()
        own = [line for line in lines if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in own if not model or f'"{model}"' in line)

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)


def run_server(site: Site, kind: str = "", **environment: str) -> Server:
    """Start `python -m trivet_web` in the site, or a `kind` of other_server.py, and wait until it answers."""
    port = free_port()
    home = site.settings.home
    command = [sys.executable, "-m", "trivet_web", "--home", home, "--port", str(port)]
    if kind:
        command = [sys.executable, str(OTHER_SERVER), kind, home, str(port)]
    ours = {"TRIVET_DATABASE_URL": site.settings.resolved_database_url, "TRIVET_DRAIN_TIMEOUT_S": "3"}
    env = {**os.environ, **ours, "TRIVET_WEB_THREADS": "64", **environment}
    process = subprocess.Popen(command, env=env)
    server = Server(process, port)
    site.settings.paths.lock_file.write_text(str(process.pid))  # as `trivet serve` writes itself there
    site.settings.paths.url_file.write_text(server.url)

    def end() -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    site.stack.callback(end)
    cert = environment.get("TRIVET_TLS_CERT")
    wait_until(lambda: _answers(port, cert), what="the server answers")
    return server


@pytest.fixture(scope="session", name="run_server")
def server_runner() -> Callable[..., Server]:
    """For fixtures of a wider scope."""
    return run_server


@pytest.fixture
def start_server(site: Site) -> Callable[..., Server]:
    """For tests that need a server of their own."""
    return partial(run_server, site)


@dataclass
class Live:
    """A site with a server; each test makes its own deployment in it."""

    site: Site
    server: Server

    def serve(self, *options: str) -> Served:
        return self.site.serve(*options)


@pytest.fixture(scope="module")
def live(new_site: NewSite) -> Iterator[Live]:
    with new_site() as made:
        yield Live(made, run_server(made))


def _answers(port: int, cert: str | None) -> bool:
    scheme, context = ("http", None) if cert is None else ("https", trust(None, own_cert=cert))
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/health", timeout=5, context=context):
            return True
    except OSError:
        return False
