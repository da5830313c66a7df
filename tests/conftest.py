"""For all tests."""

import pytest

# Before any test module imports them: their asserts explain themselves like those of test modules.
pytest.register_assert_rewrite("trivet.contract_suite.cases")
