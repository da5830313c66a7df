"""Compiles the C++ kernels to one shared library for one instruction-set level.

The library is sealed: behind the ELF image, where no loader looks, stands the SHA-256 of all before it. A
file that lost its end (a full disk, a cut copy) would end the process with SIGBUS once a missing page is
touched; the seal tells it from a whole one before it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("g++", "c++", "clang++")
# Floating-point rules of the language, NaN included, are kept: no -ffast-math. -O2 would save 1.5 of 7 s of
# compiling (2-core Zen 4); a build happens once, the products and attention run for ever.
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-pthread")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
_AVX512_BF16 = (*_AVX512, "-mavx512bf16")
# Best first: the flags that a CPU must have (as `DeviceInfo.arch` names them), and the compiler's. "amx" also
# takes GCC 11 or clang 12, and the kernel's leave (`tile_permission.py`).
LEVELS = MappingProxyType(
    {
        "amx": (
            ("avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"),
            (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16"),
        ),
        "avx512_bf16": (("avx512f", "avx512_vnni", "avx512_bf16"), _AVX512_BF16),
        "avx512": (("avx512f", "avx512_vnni"), _AVX512),
        "avx2": (("avx2",), _AVX2),
        "portable": ((), ()),
    }
)
# What an assembler has to know as well: a compiler may come with one that is older than its flags.
INSTRUCTIONS = MappingProxyType(
    {
        "amx": ("tilezero %tmm0", "vmulph %zmm0, %zmm0, %zmm0"),
        "avx512_bf16": ("vdpbf16ps %zmm0, %zmm0, %zmm0",),
        "avx512": ("vpdpbusd %zmm0, %zmm0, %zmm0",),
    }
)
COMPILE_TIMEOUT_S = 300.0
# A build folder that nothing was written to for so long is what a killed build has left; a compiler that
# runs longer than its time is ended.
LEFT_OVER_S = 2 * COMPILE_TIMEOUT_S
BUILD_PREFIX = ".build-"
SEAL_BYTES = hashlib.sha256().digest_size


def machine_levels() -> list[str]:
    """Levels that a compiler of this kind of machine can build, best first, whatever this CPU runs."""
    return list(LEVELS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def compiler_flags(level: str) -> tuple[str, ...]:
    """All flags of a level but those that name files."""
    return (*COMMON_FLAGS, *LEVELS[level][1])


def find_compiler(names: tuple[str, ...] = COMPILERS) -> str | None:
    """The path of the first that exists."""
    return next((found for name in names if (found := shutil.which(name))), None)


def knows_level(compiler: str, level: str) -> bool:
    """Whether it knows the level's flags, and its assembler the instructions; about 15 ms."""
    source = "".join(f'asm("{instruction}");' for instruction in INSTRUCTIONS.get(level, ()))
    with tempfile.TemporaryDirectory(prefix=BUILD_PREFIX) as scratch:
        command = [compiler, *compiler_flags(level), "-x", "c++", "-c", "-", "-o", f"{scratch}/probe.o"]
        ended = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return ended.returncode == 0


def compiler_version(compiler: str) -> str:
    """Its first words about itself: "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"."""
    words = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return words.partition("\n")[0] or compiler


def sources_hash() -> str:
    """Of every source and header, names included: 12 hex digits."""
    sources = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        if file.suffix in (".cpp", ".h"):
            sources.update(file.name.encode() + b"\0" + file.read_bytes())
    return sources.hexdigest()[:12]


def compile_library(compiler: str, level: str, target: Path) -> None:
    """Write the sealed library to `target`, whole or not at all; about 4 s on two cores.

    Every source is compiled by itself, as many at once as there are CPUs and the longest first.

    Raises: CalledProcessError with the compiler's words; TimeoutExpired; OSError of the folder.
    """
    flags = compiler_flags(level)
    sources = sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=BUILD_PREFIX) as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]

        def compile_one(source: Path, object_file: Path) -> None:
            _run([compiler, *flags, "-c", str(source), "-o", str(object_file)])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            list(threads.map(compile_one, sources, objects))
        library = Path(scratch) / "kernels.so"
        _run([compiler, *flags, "-shared", "-o", str(library), *map(str, objects)])
        _seal(library)
        library.chmod(0o644)
        os.replace(library, target)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed builds have left in a cache, and nothing that may still be written."""
    for leftover in folder.glob(f"{BUILD_PREFIX}*"):
        with suppress(FileNotFoundError):  # another build has removed it meanwhile, or has ended
            if time.time() - leftover.stat().st_mtime > LEFT_OVER_S:
                shutil.rmtree(leftover, ignore_errors=True)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)


def _seal(library: Path) -> None:
    digest = hashlib.sha256(library.read_bytes()).digest()
    with open(library, "ab") as out:
        out.write(digest)


def is_whole(library: Path) -> bool:
    """Whether the file is as it was built; 1 ms for 600 KB. Raises: OSError."""
    content = library.read_bytes()
    return hashlib.sha256(content[:-SEAL_BYTES]).digest() == content[-SEAL_BYTES:]
