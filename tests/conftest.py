"""For all tests: how many run at once, on how many threads, and that Ctrl-C counts."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

MAX_WORKERS = 4  # each may hold torch, transformers and a real model: 3 GB

# Before torch is imported, here and in every process that a test starts: the workers have the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.append(str(Path(__file__).parent))  # ports

# A shell that starts this in the background ignores it, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before any test module imports them: their asserts explain themselves like those of test modules.
pytest.register_assert_rewrite("trivet.contract_suite.cases")


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `tests/run postgres`."""
    parser.addoption(
        "--postgres",
        metavar="URL",
        help="registries are databases of this server, not SQLite, and stay there; others are left out",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL a test without a registry would only be run twice."""
    if config.getoption("--postgres") is not None:
        kept = [
            item
            for item in items
            if "registries" in getattr(item, "fixturenames", ()) or item.get_closest_marker("postgres")
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis tries the same examples each time, so that no run fails by a new one.

    `--hypothesis-profile default` looks for new ones.
    """
    if config.pluginmanager.has_plugin("hypothesispytest"):  # not in `tests/run clients`
        from hypothesis import settings

        # A busy machine is no failure: hypothesis' deadline per example would make it one.
        settings.register_profile("repeated", derandomize=True, deadline=None)
        settings.load_profile("repeated")


class Registries(Protocol):
    """Makes databases of registries, on the database that is tested."""

    def empty(self, folder: Path) -> str:
        """The URL of one without tables; of SQLite its file is in the folder."""

    def copy(self, folder: Path, name: str, prepare: Callable[[str], None]) -> str:
        """The URL of a copy of what `prepare` makes of an empty one, once for each name."""


class SqliteRegistries:
    """Files."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def empty(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'registry.db'}"

    def copy(self, folder: Path, name: str, prepare: Callable[[str], None]) -> str:
        prepared = self._place / name / "registry.db"
        if not prepared.exists():
            prepared.parent.mkdir()
            prepare(f"sqlite:///{prepared}")
        shutil.copyfile(prepared, folder / "registry.db")
        return self.empty(folder)


class PostgresRegistries:
    """Databases of a server, which stay there."""

    def __init__(self, server: str) -> None:
        from sqlalchemy import create_engine, make_url  # `tests/run clients` reads this file without it

        self._engine = create_engine(server, isolation_level="AUTOCOMMIT")
        self._url = make_url(server)
        self._prepared: dict[str, str] = {}

    def empty(self, folder: Path) -> str:
        return self._create("template1")

    def copy(self, folder: Path, name: str, prepare: Callable[[str], None]) -> str:
        if name not in self._prepared:
            prepare(made := self.empty(folder))
            self._prepared[name] = made.partition("?")[0].rpartition("/")[2]
        return self._create(self._prepared[name])

    def _create(self, template: str) -> str:
        from sqlalchemy import text

        name = f"trivet_{uuid.uuid4().hex}"
        with self._engine.connect() as connection:
            # 27 ms; 68 ms by way of the log, which is the default since 15.
            is_new = (connection.dialect.server_version_info or (0,)) >= (15,)
            strategy = " STRATEGY FILE_COPY" if is_new else ""
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}{strategy}"))
        return self._url.set(database=name).render_as_string(hide_password=False)

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(scope="session")
def registries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registries]:
    server = request.config.getoption("--postgres")
    if server is None:
        yield SqliteRegistries(tmp_path_factory.mktemp("registries"))
        return
    yield (made := PostgresRegistries(server))
    made.close()


@pytest.fixture(scope="session")
def new_registry_url(registries: Registries) -> Callable[[Path], str]:
    """A function of a folder: the URL of a new registry, with its tables."""

    def make_tables(url: str) -> None:
        from trivet_registry.database import open_database

        open_database(url).close()

    return lambda folder: registries.copy(folder, "newest", make_tables)


@pytest.fixture
def sqlite_only(request: pytest.FixtureRequest) -> None:
    """For tests of what SQLite's file is and has, or whose processes open one."""
    if request.config.getoption("--postgres") is not None:
        pytest.skip("its registry is SQLite's file")


@pytest.fixture(scope="session")
def quick_disk() -> str | None:
    """Where commits wait for no disk (here 4 ms each): no test cuts the power. None: wherever others are."""
    memory = "/dev/shm"
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    return memory if has_room else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a worker a CPU, and none for a single file, which would keep one of them busy.

    xdist's own count leaves out hyperthreads, and so halves a small virtual machine.
    """
    files = {Path(argument.partition("::")[0]) for argument in config.args}
    if len(files) == 1 and files.pop().is_file():
        return 0
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
