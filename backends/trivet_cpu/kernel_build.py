"""Finds the library of C++ kernels for this CPU, and builds it where there is none yet.

One library for each instruction-set level, chosen by the CPU's flags: the sources are the same, so a level
that the CPU lacks is never loaded and each level can be tested on a CPU that has more. It is looked for in
three places, in this order:

1. the folder that `trivet kernels build --output` filled (`TRIVET_KERNELS_DIR`), as
   `LEVEL-MACHINE-SOURCES.so`: no compiler is needed then;
2. the user's cache, as `LEVEL-SOURCES-COMPILER.so`;
3. where the cache cannot be written, a folder of the user in the temporary one.

SOURCES and COMPILER are hashes of the sources with the flags, and of the compiler; a change of any gives a
new file, and nothing that runs is overwritten. A damaged library is built anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trivet.config import kernels_dir
from trivet.errors import BackendError
from trivet_cpu.kernel_compiler import (
    COMPILE_TIMEOUT_S,
    COMPILERS,
    LEVELS,
    compile_library,
    compiler_flags,
    find_compiler,
    is_whole,
    knows_level,
    remove_leftovers,
    sources_hash,
)
from trivet_cpu.private_folder import private_folder

logger = logging.getLogger(__name__)

# A build that failed is not tried again for so long, so that an engine that is started again and again does
# not compile each time; and no longer, because headers may have come while the compiler stayed the same.
RETRY_AFTER_S = 600.0


class KernelsUnavailable(BackendError):
    """The kernels cannot be had here; the message says why, in the compiler's words where it has some."""


class BuildFailed(KernelsUnavailable):
    """The compiler refused them, in its own words."""


def levels_of(arch: str) -> list[str]:
    """Levels that a CPU with these flags can run, best first; `arch` as in `DeviceInfo`."""
    flags = set(arch.split())
    return [name for name, (needed, _) in LEVELS.items() if flags.issuperset(needed)]


@dataclass(frozen=True, slots=True)
class Built:
    """What a build made."""

    path: Path
    compiler: str
    seconds: float


class KernelCache:
    """Libraries by level, built when first wanted."""

    def __init__(
        self,
        folder: Path | None = None,
        compilers: tuple[str, ...] = COMPILERS,
        prebuilt: Path | None = None,
        spare: Callable[[], Path] = lambda: private_folder("trivet-kernels"),
    ) -> None:
        """Nothing is read or made before a library is asked for.

        Args:
            folder: the cache; `~/.cache/trivet/kernels` unless a test says otherwise, none without a home.
            prebuilt: read before it; the environment's where none is given.
            spare: what stands in for a cache that cannot be written.
        """
        self.folder = folder or _cache_of_user()
        self._compilers = compilers
        self._prebuilt = prebuilt or kernels_dir()
        self._spare = spare

    def best_level(self, arch: str, *, retries: bool = False) -> str:
        """The best level of a CPU with these flags that can be had here.

        One below the CPU's best where the compiler is too old for that or has just failed over it, or where
        there is none and a library of the lower one is. The CPU's best where nothing can be had: `check` says
        why.

        Args:
            retries: a level whose build failed a short while ago counts like the others.
        """
        levels = levels_of(arch)
        compiler = find_compiler(self._compilers)
        for level in levels:
            if self._find(level) is not None:
                return level
            has_failed = not retries and self.recent_failure(level) is not None
            if compiler is not None and not has_failed and knows_level(compiler, level):
                return level
        return levels[0]

    def recent_failure(self, level: str) -> str | None:
        """What the compiler said when it failed over a level a short while ago; None where it did not."""
        compiler = find_compiler(self._compilers)
        if compiler is None:
            return None
        marks = [folder / f"{_cached_name(level, compiler)}.failed" for folder in self._folders()]
        return next((words for mark in marks if (words := _recent_failure(mark)) is not None), None)

    def check(self, level: str) -> None:
        """Whether `library` can be expected to give one: no compiler runs here.

        Raises: KernelsUnavailable.
        """
        if self._find(level) is not None:
            return
        self._compiler()
        words = self.recent_failure(level)
        if words is not None:
            raise KernelsUnavailable(
                f"{words}\n(`trivet kernels build` tries again at once, an engine's start "
                f"after {RETRY_AFTER_S / 60:.0f} minutes)"
            )

    def library(self, level: str) -> Path:
        """The library of a level, built if it is not there; about 4 s on two cores.

        Processes that want the same one wait for the first of them.

        Raises: KernelsUnavailable.
        """
        found = self._find(level)
        if found is not None:
            return found
        self.check(level)
        with self._locked(level) as folder:
            found = self._find(level)
            if found is not None:
                return found
            self.check(level)  # another process may have tried meanwhile, in vain
            return self._build_in(folder, level).path

    def build(self, level: str, output: Path | None = None) -> Built:
        """Build a level now, whatever is there: into the cache, or into the folder `output`.

        Raises: KernelsUnavailable.
        """
        if output is not None:
            return self._build(level, output / _prebuilt_name(level))
        with self._locked(level) as folder:
            return self._build_in(folder, level)

    # ---- finding ----

    def _find(self, level: str) -> Path | None:
        return next((library for library in self._candidates(level) if _is_usable(library)), None)

    def _candidates(self, level: str) -> Iterator[Path]:
        if self._prebuilt is not None:
            yield self._prebuilt / _prebuilt_name(level)
        compiler = find_compiler(self._compilers)
        for folder in self._folders():
            if compiler is not None:
                yield folder / f"{_cached_name(level, compiler)}.so"
            elif os.access(folder, os.R_OK | os.X_OK):  # built by one that has gone since
                yield from sorted(folder.glob(f"{level}-{_sources(level)}-*.so"))

    def _folders(self) -> list[Path]:
        """The cache and, where it cannot be written, what stands in for it. Raises: KernelsUnavailable."""
        if self.folder is not None and _is_writable(self.folder):
            return [self.folder]
        caches = [] if self.folder is None else [self.folder]
        try:
            return [*caches, self._spare()]
        except OSError as error:
            if not caches:
                raise KernelsUnavailable(
                    f"the CPU kernels cannot be stored: this user has no home, and {error}; set HOME"
                ) from error
            return caches

    # ---- building ----

    def _compiler(self) -> str:
        found = find_compiler(self._compilers)
        if found is None:
            raise KernelsUnavailable(
                f"no C++ compiler was found ({', '.join(self._compilers)}); "
                "install g++ for the fast CPU kernels"
            )
        return found

    @contextmanager
    def _locked(self, level: str) -> Iterator[Path]:
        """The folder to build into, while no other process builds this level there."""
        folder = self._folders()[-1]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = open(folder / f"{level}.lock", "w")  # noqa: SIM115  # closed below, with the lock
        except OSError as error:
            raise _not_stored(folder, error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, also by a death
            remove_leftovers(folder)
            yield folder

    def _build_in(self, folder: Path, level: str) -> Built:
        """Into a cache, where a failure leaves a mark for those that come after."""
        name = _cached_name(level, self._compiler())
        failure = folder / f"{name}.failed"
        try:
            built = self._build(level, folder / f"{name}.so")
        except BuildFailed as error:
            with suppress(OSError):  # a full disk, on which the build failed too
                failure.write_text(str(error))
            raise
        failure.unlink(missing_ok=True)
        return built

    def _build(self, level: str, target: Path) -> Built:
        compiler, started_s = self._compiler(), time.monotonic()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            compile_library(compiler, level, target)
        except subprocess.CalledProcessError as error:
            raise BuildFailed(
                f"the CPU kernels did not build: {' '.join(error.cmd)}\n"
                f"ended with {error.returncode}: {error.stderr.strip()}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise KernelsUnavailable(
                f"{compiler} took more than {COMPILE_TIMEOUT_S:.0f} s over the CPU kernels; try again"
            ) from error
        except OSError as error:
            raise _not_stored(target.parent, error) from error
        seconds = time.monotonic() - started_s
        logger.info("kernels=%s built_in_s=%.1f level=%s", target, seconds, level)
        return Built(target, compiler, seconds)


def _cache_of_user() -> Path | None:
    """None where the user has no home: HOME is not set and the user database does not know the user."""
    try:
        return Path("~/.cache/trivet/kernels").expanduser()
    except RuntimeError:
        return None


def _not_stored(folder: Path, error: OSError) -> KernelsUnavailable:
    return KernelsUnavailable(f"the CPU kernels cannot be stored in {folder}: {error}")


def _sources(level: str) -> str:
    """Hash of the sources and of the level's flags."""
    flags = hashlib.sha256(" ".join(compiler_flags(level)).encode()).hexdigest()
    return f"{sources_hash()}{flags[:4]}"


def _prebuilt_name(level: str) -> str:
    return f"{level}-{platform.machine()}-{_sources(level)}.so"


def _cached_name(level: str, compiler: str) -> str:
    """Without a suffix."""
    resolved = Path(compiler).resolve()
    stat = resolved.stat()
    # The compiler's file stands for its version: asking it would cost 10 ms at each start.
    built_with = f"{resolved} {stat.st_size} {stat.st_mtime_ns}"
    return f"{level}-{_sources(level)}-{hashlib.sha256(built_with.encode()).hexdigest()[:12]}"


def _is_usable(library: Path) -> bool:
    try:
        if is_whole(library):
            return True
        logger.warning("kernels=%s is damaged and is not loaded", library)
    except OSError:
        pass  # absent, or not ours to read
    return False


def _is_writable(folder: Path) -> bool:
    # os.path: `Path.exists` raises where a parent may not be searched, as root's home by another user.
    existing = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _recent_failure(mark: Path) -> str | None:
    """What the compiler said when it failed a short while ago; None where there is no such mark."""
    try:
        age_s = time.time() - mark.stat().st_mtime
        return mark.read_text() if age_s < RETRY_AFTER_S else None
    except OSError:  # none, or another process has just built the library and removed it
        return None
