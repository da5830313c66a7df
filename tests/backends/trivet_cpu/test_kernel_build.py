"""Building the kernels: one library a level, a cache, and what is said where it cannot be done."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.contract import RunnerConfig
from trivet.demo_model import find_demo_model
from trivet.errors import Unsupported
from trivet.models.model_files import open_model
from trivet_cpu.backend import CpuBackend
from trivet_cpu.kernel_build import RETRY_AFTER_S, KernelCache, KernelsUnavailable, levels_of
from trivet_cpu.kernel_compiler import BUILD_PREFIX, LEFT_OVER_S, SOURCES, is_whole
from trivet_cpu.runner import CpuTorchRunner

NUM_COMPILER_CALLS = len(list(SOURCES.glob("*.cpp"))) + 1  # the last one links
WORDS = "kernels.cpp:1: error: this machine is tired"


def _compiler(folder: Path, script: str) -> str:
    """A compiler that does what `script` says."""
    file = folder / "compiler"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def _writes_its_output(folder: Path) -> str:
    return _compiler(
        folder, f'echo x >> {folder}/calls; while [ "$1" != "-o" ]; do shift; done; echo "$2" > "$2"'
    )


@pytest.mark.parametrize(
    ("arch", "best"),
    [
        ("x86-64 avx2 avx512f avx512_vnni avx512_bf16", "avx512_bf16"),
        ("x86-64 avx2 avx512f avx512_vnni", "avx512"),
        ("x86-64 avx2 avx512f", "avx2"),
        ("x86-64", "portable"),
        ("aarch64 asimd bf16", "portable"),
    ],
)
def test_the_best_level_that_the_flags_allow_comes_first(arch: str, best: str) -> None:
    levels = levels_of(arch)
    assert (levels[0], levels[-1]) == (best, "portable")


def test_a_library_is_built_once_for_all_that_want_it(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache", (_writes_its_output(tmp_path),))
    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(cache.library, ["portable"] * 4))
    assert len(paths) == 1
    num_calls = len((tmp_path / "calls").read_text().splitlines())
    cache.library("portable")
    assert len((tmp_path / "calls").read_text().splitlines()) == num_calls
    assert cache.library("avx2") not in paths


def test_another_compiler_gives_another_library(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        paths.append(
            KernelCache(tmp_path / "cache", (_writes_its_output(tmp_path / name),)).library("portable")
        )
    assert paths[0] != paths[1]


def test_two_processes_that_want_a_library_build_it_once(tmp_path: Path) -> None:
    compiler = _writes_its_output(tmp_path)
    start = tmp_path / "start"
    code = (
        "import sys, time; from pathlib import Path; from trivet_cpu.kernel_build import KernelCache\n"
        f"while not Path({str(start)!r}).exists(): time.sleep(0.001)\n"
        f"print(KernelCache(Path({str(tmp_path / 'cache')!r}), ({compiler!r},)).library('portable'))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    start.touch()
    paths = {process.communicate(timeout=60)[0] for process in both}
    assert len(paths) == 1
    assert Path(paths.pop().strip()).exists()
    assert len((tmp_path / "calls").read_text().splitlines()) == NUM_COMPILER_CALLS


def test_a_failed_build_says_what_the_compiler_said_and_waits_before_it_is_tried_again(
    tmp_path: Path,
) -> None:
    cache = KernelCache(tmp_path / "cache", (_compiler(tmp_path, f"echo '{WORDS}' >&2; exit 3"),))
    cache.check("portable")
    with pytest.raises(KernelsUnavailable, match=f"(?s)ended with 3: {WORDS}"):
        cache.library("portable")
    with pytest.raises(KernelsUnavailable, match=f"(?s){WORDS}.*`trivet kernels build` tries again at once"):
        cache.check("portable")
    for failure in (tmp_path / "cache").glob("*.failed"):
        long_ago_s = time.time() - RETRY_AFTER_S - 1
        os.utime(failure, (long_ago_s, long_ago_s))
    cache.check("portable")


def test_a_failure_of_which_no_mark_can_be_left_is_told_all_the_same(tmp_path: Path) -> None:
    """As on a full disk: here the place of the mark is taken by a folder."""
    cache = KernelCache(tmp_path / "cache", (_compiler(tmp_path, f"echo '{WORDS}' >&2; exit 3"),))
    with pytest.raises(KernelsUnavailable):
        cache.library("portable")
    (mark,) = (tmp_path / "cache").glob("*.failed")
    mark.unlink()
    mark.mkdir()
    with pytest.raises(KernelsUnavailable, match=WORDS):
        cache.library("portable")


def test_a_build_by_command_tries_again_at_once_what_had_failed(tmp_path: Path) -> None:
    """Headers may have come while the compiler's own file stayed the same."""
    headers = tmp_path / "headers"
    script = f'[ -e {headers} ] || exit 1; while [ "$1" != "-o" ]; do shift; done; echo "$2" > "$2"'
    cache = KernelCache(tmp_path / "cache", (_compiler(tmp_path, script),))
    with pytest.raises(KernelsUnavailable):
        cache.library("portable")
    headers.touch()
    with pytest.raises(KernelsUnavailable):
        cache.library("portable")
    built = cache.build("portable").path
    assert cache.library("portable") == built


def test_a_damaged_library_is_built_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = KernelCache(tmp_path / "cache", (_writes_its_output(tmp_path),))
    library = cache.library("portable")
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        assert cache.library("portable") == library
    assert "is damaged" in caplog.text
    assert is_whole(library)


def test_a_cache_that_cannot_be_written_is_replaced_by_a_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "spare").mkdir()
    cache = KernelCache(
        tmp_path / "file" / "cache", (_writes_its_output(tmp_path),), spare=lambda: tmp_path / "spare"
    )
    library = cache.library("portable")
    assert library.parent == tmp_path / "spare"
    assert cache.library("portable") == library
    assert len((tmp_path / "calls").read_text().splitlines()) == NUM_COMPILER_CALLS


def test_a_user_without_a_home_has_the_spare_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")  # as pathlib does, for an unknown user id

    monkeypatch.setattr(Path, "expanduser", no_home)
    compilers = (_writes_its_output(tmp_path),)
    library = KernelCache(None, compilers, spare=lambda: tmp_path).library("portable")
    assert library.parent == tmp_path

    def no_folder() -> Path:
        raise PermissionError("the temporary folder is full of others' things")

    with pytest.raises(KernelsUnavailable, match=r"this user has no home, and .* others' things; set HOME"):
        KernelCache(None, compilers, spare=no_folder).library("portable")


def test_what_a_killed_build_has_left_is_removed_and_a_running_one_kept(tmp_path: Path) -> None:
    leftover, running = (tmp_path / f"{BUILD_PREFIX}{name}" for name in ("leftover", "running"))
    for folder in (leftover, running):
        folder.mkdir()
        (folder / "step.o").touch()
    os.utime(leftover, (time.time() - LEFT_OVER_S - 1,) * 2)
    KernelCache(tmp_path, (_writes_its_output(tmp_path),)).library("portable")
    assert (leftover.exists(), running.exists()) == (False, True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who may not enter a folder")
def test_a_home_that_may_not_be_entered_is_no_cache() -> None:
    """As root's, to another user of a container."""
    with tempfile.TemporaryDirectory() as shared:  # pytest's own folders are closed to others
        public = Path(shared)
        public.chmod(0o755)
        (public / "home").mkdir(mode=0o700)
        (public / "spare").mkdir()
        (public / "spare").chmod(0o777)
        cache = KernelCache(public / "home" / "cache", ("nosuch++",), spare=lambda: public / "spare")
        os.seteuid(65534)
        try:
            with pytest.raises(KernelsUnavailable, match="no C\\+\\+ compiler was found"):
                cache.library("portable")
        finally:
            os.seteuid(0)


def test_a_library_built_ahead_of_time_needs_no_compiler(tmp_path: Path) -> None:
    output = tmp_path / "image"
    built = KernelCache(tmp_path / "cache", (_writes_its_output(tmp_path),)).build("portable", output)
    cache = KernelCache(tmp_path / "other", ("nosuch++",), prebuilt=output)
    cache.check("portable")
    assert cache.library("portable") == built.path
    with pytest.raises(KernelsUnavailable, match="no C\\+\\+ compiler was found"):
        cache.library("avx2")


def test_a_library_serves_on_when_its_compiler_is_gone(tmp_path: Path) -> None:
    library = KernelCache(tmp_path / "cache", (_writes_its_output(tmp_path),)).library("portable")
    assert KernelCache(tmp_path / "cache", ("nosuch++",)).library("portable") == library


def test_engines_are_told_where_kernels_were_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVET_KERNELS_DIR", str(tmp_path))
    assert CpuBackend().launch_env([])["TRIVET_KERNELS_DIR"] == str(tmp_path)
    monkeypatch.delenv("TRIVET_KERNELS_DIR")
    assert "TRIVET_KERNELS_DIR" not in CpuBackend().launch_env([])


def test_without_a_compiler_the_one_to_install_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        KernelsUnavailable, match=r"no C\+\+ compiler was found \(nosuch\+\+\); install g\+\+"
    ):
        KernelCache(tmp_path, ("nosuch++",)).check("portable")


def test_a_failed_build_leads_to_the_torch_runner_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = _compiler(tmp_path, f"echo '{WORDS}' >&2; exit 3")
    backend = CpuBackend(kernels=KernelCache(tmp_path / "cache", (compiler,)))
    files = open_model(find_demo_model())
    assert files.spec is not None
    devices = backend.probe(1.0)
    config = RunnerConfig(max_model_len=64, max_num_seqs=2)
    plan = backend.plan(files.spec, files.weights, config, devices)
    with caplog.at_level(logging.WARNING):
        runner = backend.create_runner(files.spec, config, plan, devices)
    assert isinstance(runner, CpuTorchRunner)
    (record,) = caplog.records
    assert WORDS in record.getMessage()
    asked = replace(config, options={"kernels": "native"})
    with pytest.raises(Unsupported, match=f"(?s)kernels=native needs .*{WORDS}"):
        backend.check(files.spec, files.weights, asked, devices[0])
