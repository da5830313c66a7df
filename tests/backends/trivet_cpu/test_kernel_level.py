"""The level of the kernels where the CPU's best may not be used or cannot be built."""

from __future__ import annotations

import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trivet_cpu.backend import CpuBackend
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache
from trivet_cpu.kernel_level import choose_level
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


def test_asking_twice_changes_nothing() -> None:
    assert ask_for_tiles() == ask_for_tiles()
