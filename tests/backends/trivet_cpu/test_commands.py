"""`trivet kernels build`: what it makes, and what it says where it cannot."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from trivet.cli import main
from trivet.errors import ConfigError
from trivet_cpu.commands import build_kernels, levels_to_build
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, KernelsUnavailable, levels_of
from trivet_cpu.kernel_compiler import machine_levels
from trivet_cpu.native_library import load_library


@pytest.mark.compiles
def test_the_host_s_own_level_is_built_into_a_folder_and_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernels", "build", "--output", str(tmp_path / "image"), "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert made["level"] == levels_of(Host().arch())[0]
    assert made["seconds"] > 0
    assert "g++" in made["compiler"] or "clang" in made["compiler"]
    assert Path(made["path"]).parent == tmp_path / "image"
    load_library(
        KernelCache(tmp_path / "none", ("nosuch++",), prebuilt=tmp_path / "image").library(made["level"])
    )


def test_a_table_names_path_compiler_and_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Fine Compiler 3" && exit\n'
        'while [ "$1" != "-o" ]; do shift; done; echo > "$2"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    build_kernels(KernelCache(tmp_path / "cache", (str(compiler),)), "portable", None, as_json=False)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["LEVEL", "SECONDS", "COMPILER", "PATH"]
    assert row.startswith("portable")
    assert "Fine Compiler 3" in row
    assert str(tmp_path / "cache") in row


def test_a_level_that_fails_does_not_keep_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *-mavx2*) echo no such register >&2; exit 1;; esac\n'
        'while [ $# -gt 0 ] && [ "$1" != "-o" ]; do shift; done; [ $# = 0 ] || echo > "$2"\n'
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    cache = KernelCache(tmp_path / "cache", (str(compiler),))
    levels = machine_levels()
    failing = [level for level in levels if level != "portable"]
    if not failing:
        pytest.skip("this kind of machine has one level")
    with pytest.raises(KernelsUnavailable, match=rf"(?s)^{len(failing)} of .*\navx2: .*no such register"):
        build_kernels(cache, "all", None, as_json=False)
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["portable"]


def test_without_a_compiler_the_command_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=r"install g\+\+"):
        build_kernels(KernelCache(tmp_path, ("nosuch++",)), "portable", None, as_json=False)


def test_all_are_the_levels_of_this_kind_of_machine() -> None:
    assert levels_to_build("all") == machine_levels()
    assert levels_to_build("portable") == ["portable"]


def test_an_unknown_level_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"--isa is 'sse9'; .* host, all, .*portable"):
        levels_to_build("sse9")
