"""The contract suite's own fixtures, in this folder too; and an emulated NPU as one more backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

EMULATED = Path(__file__).parents[1] / "backends/trivet_ascend"
sys.path.append(str(EMULATED / "emulated"))

from trivet_ascend_emulated.backend import EmulatedAscend  # noqa: E402

from trivet.contract_suite.defects import Hunt  # noqa: E402
from trivet.contract_suite.plugin import candidate_param, models, subject  # noqa: E402
from trivet.contract_suite.subject import Candidate, ModelLibrary, find_candidates  # noqa: E402
from trivet.plugins import load_plugins  # noqa: E402

__all__ = ["hunt", "models", "subject"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As the plugin, with the emulated NPU in bfloat16; `tests/run ascend` has the other dtypes.

    A backend without a device here is one test that says so, and not a skip of every case.
    """
    if "absent" in metafunc.fixturenames:
        absent = [each for each in candidates() if each.absent_because]
        metafunc.parametrize("absent", absent, ids=[each.name for each in absent])
    if "subject" in metafunc.fixturenames:
        here = [candidate_param(each) for each in candidates() if not each.absent_because]
        metafunc.parametrize("subject", here, indirect=True)


@cache
def candidates() -> list[Candidate]:
    """The same ones for every case: else each would have a subject, and load its models, of its own."""
    emulated = EmulatedAscend()
    installed = [beside_others(each) for each in find_candidates(load_plugins().backends)]
    return [*installed, *find_candidates({emulated.name: emulated}, dtypes=("bf16",))]


def beside_others(candidate: Candidate) -> Candidate:
    """torch's threads of the CPU wait by turning, and other tests have the other cores."""
    if (candidate.backend.name, candidate.options.get("kernels")) != ("cpu", "torch"):
        return candidate
    return replace(candidate, options={**candidate.options, "num_threads": "1"})


@pytest.fixture(autouse=True)
def emulated_in_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a case starts finds the emulated NPU's plugin, where that is the subject."""
    if "subject" in request.fixturenames:
        backend = request.getfixturevalue("subject").backend
        if backend.name == EmulatedAscend.name:
            path = f"{EMULATED / 'emulated'}:{EMULATED / 'emulated_plugin'}"
            monkeypatch.setenv("PYTHONPATH", path, prepend=":")


@pytest.fixture(scope="session")
def hunt(models: ModelLibrary) -> Iterator[Hunt]:
    """Shows that a case finds a defect."""
    hunt = Hunt(models)
    yield hunt
    hunt.close()
