"""The contract suite's own fixtures, in this folder too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("trivet.contract_suite.cases")

from trivet.contract_suite.plugin import models, pytest_generate_tests, subject  # noqa: E402

__all__ = ["models", "pytest_generate_tests", "subject"]
