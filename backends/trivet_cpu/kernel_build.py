"""Builds the C++ kernels into the user's cache when they are first needed.

One library for each instruction-set level, chosen by the CPU's flags: the sources are the same, so a level
that the CPU lacks is never loaded and each level can be tested on a CPU that has more. A library's name holds
hashes of the sources, of the compiler and of its flags; a change of any gives a new file, and nothing that
runs is overwritten.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from trivet.errors import BackendError

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("g++", "c++", "clang++")
# Floating-point rules of the language, NaN included, are kept: no -ffast-math.
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-pthread")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
# Best first: the flags that a CPU must have (as `DeviceInfo.arch` names them), and the compiler's.
LEVELS = MappingProxyType(
    {
        "avx512_bf16": (("avx512f", "avx512_vnni", "avx512_bf16"), (*_AVX512, "-mavx512bf16")),
        "avx512": (("avx512f", "avx512_vnni"), _AVX512),
        "avx2": (("avx2",), _AVX2),
        "portable": ((), ()),
    }
)
COMPILE_TIMEOUT_S = 300.0


class KernelsUnavailable(BackendError):
    """The kernels cannot be had here; the message says why, in the compiler's words where it has some."""


def levels_of(arch: str) -> list[str]:
    """Levels that a CPU with these flags can run, best first; `arch` as in `DeviceInfo`."""
    flags = set(arch.split())
    return [name for name, (needed, _) in LEVELS.items() if flags.issuperset(needed)]


class KernelCache:
    """Libraries in one folder, `~/.cache/trivet/kernels` unless a test says otherwise."""

    def __init__(self, folder: Path | None = None, compilers: tuple[str, ...] = COMPILERS) -> None:
        self.folder = folder or Path("~/.cache/trivet/kernels").expanduser()
        self._compilers = compilers

    def check(self, level: str) -> None:
        """Whether `library` can be expected to give one: no compiler runs here.

        Raises: KernelsUnavailable.
        """
        compiler = self._compiler()
        name = _name(level, compiler)
        if (self.folder / f"{name}.so").exists():
            return
        failure = self.folder / f"{name}.failed"
        if failure.exists():
            raise KernelsUnavailable(f"{failure.read_text()}\n(delete {failure} to build once more)")

    def library(self, level: str) -> Path:
        """The library of a level, built if it is not there; about 10 s on two cores.

        Processes that want the same one wait for the first of them.

        Raises: KernelsUnavailable.
        """
        self.check(level)
        compiler = self._compiler()
        target = self.folder / f"{_name(level, compiler)}.so"
        if target.exists():
            return target
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(target.with_suffix(".lock")):
                self.check(level)
                if not target.exists():
                    self._build(compiler, level, target)
        except OSError as error:
            raise KernelsUnavailable(f"the CPU kernels cannot be stored in {self.folder}: {error}") from error
        return target

    def _build(self, compiler: str, level: str, target: Path) -> None:
        started_s = time.monotonic()
        flags = (*COMMON_FLAGS, *LEVELS[level][1])
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                built = _compile(compiler, flags, Path(scratch))
                os.replace(built, target)
        except subprocess.CalledProcessError as error:
            words = f"{' '.join(error.cmd)}\nended with {error.returncode}: {error.stderr.strip()}"
            target.with_suffix(".failed").write_text(f"the CPU kernels did not build: {words}")
            raise KernelsUnavailable(f"the CPU kernels did not build: {words}") from error
        except subprocess.TimeoutExpired as error:
            raise KernelsUnavailable(
                f"{compiler} took more than {COMPILE_TIMEOUT_S:.0f} s over the CPU kernels; try again"
            ) from error
        logger.info("kernels=%s built_in_s=%.1f level=%s", target, time.monotonic() - started_s, level)

    def _compiler(self) -> str:
        for name in self._compilers:
            found = shutil.which(name)
            if found:
                return found
        raise KernelsUnavailable(
            f"no C++ compiler was found ({', '.join(self._compilers)}); install g++ for the fast CPU kernels"
        )


def _name(level: str, compiler: str) -> str:
    """Sources, compiler and flags in a file name."""
    sources = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        if file.suffix in (".cpp", ".h"):
            sources.update(file.name.encode() + b"\0" + file.read_bytes())
    resolved = Path(compiler).resolve()
    stat = resolved.stat()
    # The compiler's file stands for its version: asking it would cost 10 ms at each start.
    built_with = f"{resolved} {stat.st_size} {stat.st_mtime_ns} {COMMON_FLAGS} {LEVELS[level]}"
    return f"{level}-{sources.hexdigest()[:12]}-{hashlib.sha256(built_with.encode()).hexdigest()[:12]}"


def _compile(compiler: str, flags: tuple[str, ...], scratch: Path) -> Path:
    """Every source by itself, as many at once as there are CPUs, then one library.

    Raises: CalledProcessError with the compiler's words.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [scratch / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, target: Path) -> None:
        _run([compiler, *flags, "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(compile_one, sources, objects))
    library = scratch / "kernels.so"
    _run([compiler, *flags, "-shared", "-o", str(library), *map(str, objects)])
    return library


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, also by a death
        yield
