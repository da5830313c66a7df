"""The contract suite's own fixtures, in this folder too; and an emulated NPU as one more backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EMULATED = Path(__file__).parents[1] / "backends/trivet_ascend"
sys.path.append(str(EMULATED / "emulated"))

from trivet_ascend_emulated.backend import EmulatedAscend  # noqa: E402

from trivet.contract_suite.defects import Hunt  # noqa: E402
from trivet.contract_suite.plugin import candidate_param, models, subject  # noqa: E402
from trivet.contract_suite.subject import ModelLibrary, find_candidates  # noqa: E402
from trivet.plugins import load_plugins  # noqa: E402

__all__ = ["hunt", "models", "subject"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As the plugin, with the emulated NPU in bfloat16; `tests/run ascend` has the other dtypes."""
    if "subject" not in metafunc.fixturenames:
        return
    emulated = EmulatedAscend()
    candidates = [
        *find_candidates(load_plugins().backends),
        *find_candidates({emulated.name: emulated}, dtypes=("bf16",)),
    ]
    metafunc.parametrize("subject", [candidate_param(each) for each in candidates], indirect=True)


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
