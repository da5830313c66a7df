"""Is the suite able to fail? A defect is a wrong runner together with the case that has to find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from trivet.contract import DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.contract_suite.plain_runner import PlainBackend, PlainRunner
from trivet.contract_suite.subject import ModelLibrary, Subject, find_candidates
from trivet.errors import TrivetError
from trivet.models.spec import ModelSpec

FINDINGS = (AssertionError, TrivetError, pytest.fail.Exception)


@dataclass(frozen=True)
class Defect:
    """A wrong variant of `PlainRunner`, a case, and the case's arguments after the subject."""

    runner: type[PlainRunner]
    case: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.runner.__name__}-{self.case.__name__}"


class BackendOf(PlainBackend):
    """The plain backend with another runner."""

    def __init__(self, runner: type[PlainRunner]) -> None:
        self._runner = runner

    def create_runner(
        self, spec: ModelSpec, config: RunnerConfig, plan: MemoryPlan, devices: Sequence[DeviceInfo]
    ) -> Runner:
        """As the contract."""
        return self._runner(spec, config, plan)


class Hunt:
    """Runs the case of a defect over the sound runner, where it passes, and over the wrong one."""

    def __init__(self, models: ModelLibrary) -> None:
        self._models = models
        self._sound = self._subject(PlainRunner)

    def __call__(self, defect: Defect) -> None:
        """Raises: AssertionError where the defect is not found."""
        defect.case(self._sound, *defect.arguments)
        try:
            defect.case(self._subject(defect.runner), *defect.arguments)
        except FINDINGS:
            return
        raise AssertionError(f"{defect.case.__name__} passes over {defect.runner.__name__}")

    def close(self) -> None:
        self._sound.close()

    def _subject(self, runner: type[PlainRunner]) -> Subject:
        (candidate,) = find_candidates({"plain": BackendOf(runner)})
        return Subject(candidate, self._models)
