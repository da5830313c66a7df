"""What the package offers under its own name."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import trivet


@pytest.mark.parametrize("name", trivet.__all__)
def test_each_name_is_what_its_module_has(name: str) -> None:
    found = getattr(trivet, name)
    if name != "__version__":
        assert found is getattr(importlib.import_module(found.__module__), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'trivet' has no attribute 'LMM'"):
        trivet.LMM  # noqa: B018


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = (
        "import sys, trivet; print(*(m for m in ('numpy', 'torch', 'msgspec', 'tqdm') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
