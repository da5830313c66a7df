"""The command of this package: `trivet kernels build`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet_cpu.kernel_build import Built, KernelCache


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [
        Command("kernels", "build the C++ kernels of the CPU backend ahead of time", _add_arguments, _kernels)
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="compile them now (about 4 s for a level)")
    build.add_argument(
        "--isa",
        default="host",
        metavar="LEVEL",
        help="host (what this CPU runs best, the default), all, or amx, avx512_bf16, avx512, avx2, portable",
    )
    build.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="a folder instead of the cache, as for an image; engines read it by TRIVET_KERNELS_DIR=DIR",
    )
    build.add_argument("--json", action="store_true", help="print JSON instead of text")


def _kernels(given: argparse.Namespace) -> int:
    """`build` is the one action."""
    from trivet_cpu.kernel_build import KernelCache

    build_kernels(KernelCache(), given.isa, given.output, as_json=given.json)
    return 0


def build_kernels(cache: KernelCache, isa: str, output: Path | None, *, as_json: bool) -> None:
    """Print path, compiler and seconds of every library; a level that fails does not keep the others.

    Raises: ConfigError; KernelsUnavailable, once the others are printed, with the compiler's words.
    """
    from trivet.commands.output import print_json, print_table
    from trivet_cpu.kernel_build import BuildFailed, KernelsUnavailable
    from trivet_cpu.kernel_compiler import compiler_version

    built: dict[str, Built] = {}
    failures: dict[str, BuildFailed] = {}
    levels = levels_to_build(isa)
    for level in levels:
        try:
            built[level] = cache.build(level, output)
        except BuildFailed as error:
            failures[level] = error
    rows = [
        (level, f"{each.seconds:.1f}", compiler_version(each.compiler), str(each.path))
        for level, each in built.items()
    ]
    if as_json:
        names = ("level", "seconds", "compiler", "path")
        print_json([dict(zip(names, row, strict=True)) | {"seconds": float(row[1])} for row in rows])
    else:
        print_table(("LEVEL", "SECONDS", "COMPILER", "PATH"), rows)
    if failures:
        words = "\n".join(f"{level}: {error}" for level, error in failures.items())
        raise KernelsUnavailable(f"{len(failures)} of {len(levels)} levels did not build\n{words}")


def levels_to_build(isa: str) -> list[str]:
    """Raises: ConfigError naming what there is for this machine."""
    from trivet.errors import ConfigError
    from trivet_cpu.host import Host
    from trivet_cpu.kernel_build import KernelCache
    from trivet_cpu.kernel_compiler import machine_levels
    from trivet_cpu.kernel_level import level_to_build

    buildable = machine_levels()
    if isa == "all":
        return buildable
    if isa == "host":
        level = level_to_build(Host(), KernelCache())
        if level.not_best_because is not None:
            print(f"{level.name}: {level.not_best_because}", file=sys.stderr)
        return [level.name]
    if isa not in buildable:
        raise ConfigError(f"--isa is {isa!r}; on this machine it may be host, all, {', '.join(buildable)}")
    return [isa]
