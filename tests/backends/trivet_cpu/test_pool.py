"""The kernels' thread pool and stream: a program of cases, a busy neighbour, Python beside a native call."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.kernel_compiler import SOURCES, find_compiler
from trivet_cpu.native_library import Activations, Kind, Weight, load_library

DEADLINE_S = 60.0


def _built(folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """Builds `folder / "pool_test"`."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler to build the pool's tests with")
    sources = (Path(__file__).parent / "pool_test.cpp", SOURCES / "pool.cpp", SOURCES / "stream.cpp")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", f"-I{SOURCES}", *extra)
    command = [compiler, *flags, *map(str, sources), "-o", str(folder / "pool_test")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    built = _built(folder)
    assert built.returncode == 0, built.stderr
    return folder / "pool_test"


@pytest.mark.parametrize(
    "case",
    ["units", "shares", "own", "threads", "late", "stream", "guest", "idle", "shared", "refused", "crew"],
)
def test_the_pool_alone(program: Path, case: str) -> None:
    ended = subprocess.run([str(program), case], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("case", ["threads", "stream", "guest"])
def test_the_thread_sanitizer_finds_no_race(case: str, tmp_path: Path) -> None:
    if _built(tmp_path, "-g1", "-fsanitize=thread").returncode:
        pytest.skip("this compiler has no thread sanitizer")
    ended = subprocess.run(
        [str(tmp_path / "pool_test"), case], capture_output=True, text=True, timeout=DEADLINE_S
    )
    if "FATAL: ThreadSanitizer" in ended.stderr:
        pytest.skip("the thread sanitizer cannot run on this kernel")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_task_that_calls_its_own_pool_ends_the_process_with_words(program: Path) -> None:
    ended = subprocess.run([str(program), "nested"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode < 0
    assert "calls its own pool" in ended.stderr


class Products:
    """A product that takes a few milliseconds on one thread, over and over."""

    def __init__(self, num_threads: int) -> None:
        self._library = load_library(KernelCache().library(levels_of(Host().arch())[0]))
        self.pool = self._library.trivet_pool_create(num_threads)
        rows, columns, count = 1024, 1024, 64
        self._arrays = [np.zeros(n, np.float32) for n in (rows * columns, count * columns, count * rows)]
        data, x, out = (array.ctypes.data for array in self._arrays)
        self._weight = Weight(kind=Kind.F32, rows=rows, columns=columns, data=data)
        self._rows = Activations(columns=columns, f32=x)
        self._call = (ctypes.byref(self._weight), ctypes.byref(self._rows), count, out, rows)

    def run(self) -> None:
        self._library.trivet_multiply(self.pool, *self._call)

    @property
    def crew_size(self) -> int:
        return int(self._library.trivet_pool_crew_size(self.pool))

    def close(self) -> None:
        self._library.trivet_pool_destroy(self.pool)


@contextmanager
def _products(num_threads: int) -> Iterator[Products]:
    products = Products(num_threads)
    yield products
    products.close()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_that_share_a_core_become_fewer() -> None:
    """As beside a busy program: two threads on one core, where every barrier waits for a slice."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with _products(2) as products:
            os.sched_setaffinity(0, before)
            neighbour = subprocess.Popen(
                ["taskset", "-c", str(min(before)), sys.executable, "-c", "while True: pass"]
            )
            try:
                deadline_s = time.monotonic() + DEADLINE_S
                while products.crew_size == 2 and time.monotonic() < deadline_s:
                    products.run()
                assert products.crew_size == 1
            finally:
                neighbour.kill()
                neighbour.wait()
    finally:
        os.sched_setaffinity(0, before)


def test_python_goes_on_during_a_native_call() -> None:
    """The call gives the GIL away: else no other thread takes a step between its start and its end."""
    with _products(1) as products:
        stamps: list[float] = []
        has_ended = threading.Event()

        def watch() -> None:
            while not has_ended.is_set():
                stamps.append(time.perf_counter())

        watcher = threading.Thread(target=watch)
        watcher.start()
        deadline_s = time.monotonic() + DEADLINE_S
        is_seen = False
        while not is_seen and time.monotonic() < deadline_s:
            start_s = time.perf_counter()
            products.run()
            end_s = time.perf_counter()
            middle_s, margin_s = (start_s + end_s) / 2, (end_s - start_s) / 4
            is_seen = any(abs(stamp - middle_s) < margin_s for stamp in list(stamps))
            stamps.clear()
        has_ended.set()
        watcher.join()
        assert is_seen
