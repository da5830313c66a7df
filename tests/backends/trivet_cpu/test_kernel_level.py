"""The level of the kernels where the CPU's best may not be used or cannot be built."""

from __future__ import annotations

import logging
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trivet.contract import RunnerConfig
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_cpu.backend import CpuBackend
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import BuildFailed, KernelCache, levels_of
from trivet_cpu.kernel_compiler import compiler_flags
from trivet_cpu.kernel_level import choose_level, level_to_build
from trivet_cpu.native_runner import CpuNativeRunner
from trivet_cpu.tile_permission import ask_for_tiles

FLAGS = "avx2 avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8"
ARCH = f"x86-64 {FLAGS}"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")


def _host(root: Path, refusal: str | None = None) -> Host:
    """A machine with AMX, whose kernel answers so."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"processor : 0\nmodel name : Some CPU\nflags : fpu {FLAGS}\n")
    (root / "proc/meminfo").write_text("MemTotal: 8 kB\nMemAvailable: 8 kB\n")
    return Host(root, lambda: refusal)


def _compiler(folder: Path, condition: str) -> str:
    """A compiler that fails where `condition` holds for its arguments."""
    file = folder / "compiler"
    file.write_text(f'#!/bin/sh\ncase "$*" in {condition}) exit 1;; esac\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_with_leave_and_a_new_compiler_it_is_the_cpu_s_best(tmp_path: Path) -> None:
    host = _host(tmp_path)
    kernels = KernelCache(tmp_path / "cache", (_compiler(tmp_path, "nothing"),))
    assert host.arch().endswith(FLAGS)
    level = choose_level(host, kernels, host.arch())
    assert (level.name, level.not_best_because) == ("amx", None)
    assert [advice.status for advice in CpuBackend(host, kernels).advice({})] == ["ok"]


def test_without_leave_it_is_the_next_one_and_doctor_says_why(tmp_path: Path) -> None:
    """Also where another process, which had leave, has told the flags."""
    host = _host(tmp_path, "seccomp says no")
    kernels = KernelCache(tmp_path / "cache", (_compiler(tmp_path, "nothing"),))
    assert "amx" not in host.arch()
    for arch in (ARCH, host.arch()):
        level = choose_level(host, kernels, arch)
        assert level.name == "avx512_bf16"
        assert "seccomp says no" in (level.not_best_because or "")
    (advice,) = CpuBackend(host, kernels).advice({})
    assert advice.status == "warn"
    assert "seccomp says no" in advice.text


def test_a_compiler_that_does_not_know_the_flags_builds_the_next_one(tmp_path: Path) -> None:
    kernels = KernelCache(tmp_path / "cache", (_compiler(tmp_path, "*-mamx-tile*"),))
    level = choose_level(_host(tmp_path), kernels, ARCH)
    assert level.name == "avx512_bf16"
    assert "the compiler does not know the flags of amx" in (level.not_best_because or "")


def test_an_assembler_that_does_not_know_the_instructions_builds_the_next_level(tmp_path: Path) -> None:
    """As a new compiler beside old binutils: the flags alone are known."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n! grep -q vmulph\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    level = choose_level(_host(tmp_path), KernelCache(tmp_path / "cache", (str(compiler),)), ARCH)
    assert level.name == "avx512_bf16"


def test_a_level_that_has_just_failed_gives_way_to_the_next_one(tmp_path: Path) -> None:
    """For engines; `trivet kernels build` tries it again."""
    host = _host(tmp_path)
    kernels = KernelCache(tmp_path / "cache", (_compiler(tmp_path, "*-mamx-tile*.cpp*"),))
    assert choose_level(host, kernels, ARCH).name == "amx"
    with pytest.raises(BuildFailed):
        kernels.library("amx")
    level = choose_level(host, kernels, ARCH)
    assert level.name == "avx512_bf16"
    assert "amx did not build" in (level.not_best_because or "")
    assert level_to_build(host, kernels).name == "amx"


@pytest.mark.compiles
def test_an_engine_starts_with_the_next_level_where_the_best_does_not_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    best, *lower = levels_of(Host().arch())
    if not lower or lower[0] == "portable":
        pytest.skip(f"{best} has no level of x86 below it on this CPU")
    flag = next(f for f in reversed(compiler_flags(best)) if f not in compiler_flags(lower[0]))
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *{flag}*.cpp*) exit 1;; esac\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    backend = CpuBackend(kernels=KernelCache(tmp_path / "cache", (str(compiler),)))
    files = open_model(find_demo_model())
    assert files.spec is not None
    devices = backend.probe(1.0)
    config = RunnerConfig(max_model_len=64, max_num_seqs=2)
    plan = backend.plan(files.spec, files.weights, config, devices)
    with caplog.at_level(logging.WARNING):
        runner = backend.create_runner(files.spec, config, plan, devices)
    assert isinstance(runner, CpuNativeRunner)
    runner.close()
    assert f"{best} did not build" in caplog.text


def test_without_a_compiler_a_library_that_is_there_is_taken(tmp_path: Path) -> None:
    writes = '#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done; echo "$2" > "$2"\n'
    compiler = tmp_path / "writes"
    compiler.write_text(writes)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    KernelCache(tmp_path / "cache", (str(compiler),)).build("avx512", tmp_path / "image")
    kernels = KernelCache(tmp_path / "none", ("nosuch++",), prebuilt=tmp_path / "image")
    assert kernels.best_level(ARCH) == "avx512"
    assert KernelCache(tmp_path / "none", ("nosuch++",)).best_level(ARCH) == "amx"


def test_a_kernel_that_refuses_is_told_in_its_words() -> None:
    """The real system call, in a process whose seccomp filter answers EPERM to it."""
    code = (
        "import ctypes, struct\n"
        "from trivet_cpu.tile_permission import ask_for_tiles\n"
        "def op(code, jt, jf, k): return struct.pack('HBBI', code, jt, jf, k)\n"
        "program = op(0x20, 0, 0, 0) + op(0x15, 0, 1, 158) + op(6, 0, 0, 0x50001) + op(6, 0, 0, 0x7fff0000)\n"
        "buffer = ctypes.create_string_buffer(program)\n"
        "filter = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 4, ctypes.addressof(buffer)))\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.prctl(38, 1, 0, 0, 0) == 0, 'no new privileges'\n"
        "assert libc.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()\n"
        "print(ask_for_tiles())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "AssertionError" in ended.stderr:
        pytest.skip(f"no seccomp filter may be set here: {ended.stderr.splitlines()[-1]}")
    assert "Operation not permitted" in ended.stdout


def test_asking_twice_gives_the_same_answer_and_a_cpu_without_tiles_is_refused() -> None:
    answer = ask_for_tiles()
    assert ask_for_tiles() == answer
    has_tiles = "amx_tile" in Path("/proc/cpuinfo").read_text()
    if not has_tiles:
        assert answer is not None, "leave was given for tiles that this CPU does not have"
