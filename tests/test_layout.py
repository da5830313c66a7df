"""The top-level folders are source roots, not packages.

A platform/__init__.py would hide Python's own `platform` from every program that is started in the
checkout (torch, gunicorn and pytest need it), so no source root may have one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("platform", "backends", "model_registry", "supervisor", "web")
TOP_LEVEL = {*SOURCE_ROOTS, "tests", "docker", "setup.cfg", "setup.py", "README.md", "LICENSE"}


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_source_root_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_test_folder_is_a_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_source_root_holds_only_prefixed_packages(folder: str) -> None:
    modules = {p.stem for p in (ROOT / folder).iterdir() if p.is_dir() or p.suffix == ".py"}
    assert not {m for m in modules - {"__pycache__"} if not m.startswith("trivet")}


def test_top_level_is_the_agreed_one() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {Path(line).parts[0] for line in tracked}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL


def test_standard_platform_module_is_found_from_the_checkout() -> None:
    code = "import platform; print(platform.system())"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Linux"
