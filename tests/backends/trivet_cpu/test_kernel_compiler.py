"""Every level of the kernels compiles without a warning, and for aarch64 where a cross compiler is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trivet_cpu.kernel_compiler import (
    COMMON_FLAGS,
    LEVELS,
    SOURCES,
    compile_library,
    compiler_flags,
    compiler_version,
    find_compiler,
    is_whole,
    machine_levels,
)

AARCH64 = "aarch64-linux-gnu-g++"
STRICT = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
SOURCE_FILES = sorted(SOURCES.glob("*.cpp"))


def _words_of(compiler: str, flags: tuple[str, ...]) -> str:
    command = [compiler, *flags, *STRICT, *map(str, SOURCE_FILES)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.compiles
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_compiles_without_a_warning(level: str) -> None:
    compiler = find_compiler()
    if compiler is None or level not in machine_levels():
        pytest.skip(f"no compiler here for {level}")
    assert _words_of(compiler, compiler_flags(level)) == ""


@pytest.mark.compiles
def test_aarch64_compiles_to_the_portable_path_without_a_warning() -> None:
    if shutil.which(AARCH64) is None:
        pytest.skip(f"{AARCH64} is not installed (Debian: apt-get install g++-aarch64-linux-gnu)")
    assert _words_of(AARCH64, COMMON_FLAGS) == ""


@pytest.mark.compiles
def test_a_library_for_aarch64_is_one(tmp_path: Path) -> None:
    """Linked too: a symbol that only an x86 path defines would be missing at the first call."""
    if shutil.which(AARCH64) is None:
        pytest.skip(f"{AARCH64} is not installed (Debian: apt-get install g++-aarch64-linux-gnu)")
    library = tmp_path / "kernels.so"
    compile_library(AARCH64, "portable", library)
    content = library.read_bytes()
    assert content[:4] == b"\x7fELF"
    assert int.from_bytes(content[18:20], "little") == 183  # EM_AARCH64
    assert is_whole(library)
    undefined = subprocess.run(
        ["aarch64-linux-gnu-nm", "-D", "-u", "-C", str(library)], capture_output=True, text=True, check=True
    ).stdout
    assert "trivet" not in undefined


def test_a_compiler_without_a_version_is_called_by_its_path(tmp_path: Path) -> None:
    silent = tmp_path / "cc"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    assert compiler_version(str(silent)) == str(silent)
