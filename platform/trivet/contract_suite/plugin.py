"""The pytest plugin: options, and the fixture `subject` in every available backend and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from trivet.contract_suite.subject import Candidate, ModelLibrary, Subject, find_candidates
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError
from trivet.plugins import load_plugins

CANDIDATES = pytest.StashKey[list[Candidate]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that say which backends and dtypes; without any, all that are available."""
    group = parser.getgroup("trivet", "contract suite of Trivet's backends")
    group.addoption("--trivet-backend", action="append", default=[], help="backend to test (default: all)")
    group.addoption("--trivet-dtype", action="append", default=[], help="dtype to test (default: f32, bf16)")
    group.addoption(
        "--trivet-option", action="append", default=[], metavar="KEY=VALUE", help="option of the backend"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each case its subjects; an absent backend is skipped with the reason of its probe."""
    if "subject" not in metafunc.fixturenames:
        return
    candidates = _candidates(metafunc.config)
    metafunc.parametrize("subject", [candidate_param(candidate) for candidate in candidates], indirect=True)


def _candidates(config: pytest.Config) -> list[Candidate]:
    """Of the options, the same ones for every case: else each would have a subject of its own."""
    if CANDIDATES not in config.stash:
        try:
            config.stash[CANDIDATES] = find_candidates(
                load_plugins().backends,
                config.getoption("--trivet-backend", default=[]),
                config.getoption("--trivet-dtype", default=[]),
                dict(pair.split("=", 1) for pair in config.getoption("--trivet-option", default=[])),
            )
        except TrivetError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[CANDIDATES]


def candidate_param(candidate: Candidate) -> object:
    """The candidate as a parameter of `subject`; skipped with the reason where its device is absent."""
    absent = candidate.absent_because
    marks = [pytest.mark.skip(reason=absent)] if absent else []
    return pytest.param(candidate, marks=marks, id=candidate.name)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelLibrary:
    """Tiny models of this session, and the real one."""
    return ModelLibrary(tmp_path_factory.mktemp("models"), find_demo_model)


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, models: ModelLibrary) -> Iterator[Subject]:
    """The backend, device and dtype under test; its runners are closed when the next one's turn comes."""
    subject = Subject(cast("Candidate", request.param), models)
    yield subject
    subject.close()
