"""The contract suite's own fixtures, in this folder too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("trivet.contract_suite.cases")

from trivet.contract_suite.defects import Hunt  # noqa: E402
from trivet.contract_suite.plugin import models, pytest_generate_tests, subject  # noqa: E402
from trivet.contract_suite.subject import ModelLibrary  # noqa: E402

__all__ = ["hunt", "models", "pytest_generate_tests", "subject"]


@pytest.fixture(scope="session")
def hunt(models: ModelLibrary) -> Iterator[Hunt]:
    """Shows that a case finds a defect."""
    hunt = Hunt(models)
    yield hunt
    hunt.close()
