"""For all tests: how many run at once, on how many threads, and that Ctrl-C counts."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MAX_WORKERS = 4  # each may hold torch, transformers and a real model: 3 GB

# Before torch is imported, here and in every process that a test starts: the workers have the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
        kept = [item for item in items if "new_registry_url" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


@pytest.fixture(scope="session")
def new_registry_url(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], str]]:
    """A function of a folder: the URL of a new registry, on the database that is tested."""
    server = request.config.getoption("--postgres")
    if server is None:
        yield lambda folder: f"sqlite:///{folder / 'registry.db'}"
        return
    from sqlalchemy import create_engine, make_url, text  # `tests/run clients` reads this file without it

    engine = create_engine(server, isolation_level="AUTOCOMMIT")

    def make(folder: Path) -> str:
        name = f"trivet_{uuid.uuid4().hex}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return make_url(server).set(database=name).render_as_string(hide_password=False)

    yield make
    engine.dispose()


@pytest.fixture
def sqlite_only(request: pytest.FixtureRequest) -> None:
    """For tests of what SQLite's file is and has."""
    if request.config.getoption("--postgres") is not None:
        pytest.skip("it is about SQLite's file")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a worker a CPU, and none for a single file, which would keep one of them busy.

    xdist's own count leaves out hyperthreads, and so halves a small virtual machine.
    """
    files = {Path(argument.partition("::")[0]) for argument in config.args}
    if len(files) == 1 and files.pop().is_file():
        return 0
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
