"""Builds the libraries of CANN that torch-npu links to: fake_acl.c, and stubs for every other name.

    python build.py SITE_PACKAGES FOLDER

SITE_PACKAGES has torch and torch_npu; FOLDER gets the libraries, for LD_LIBRARY_PATH. Needs gcc and nm.
Which names are missing is read from torch-npu's own libraries, so that each release gets what it needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_acl.c")
MAIN = "libascendcl.so"
OTHERS = ("libhccl", "libacl_op_compiler", "libge_runner", "libgraph", "libacl_tdt_channel", "libatb")
SYSTEM = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1")
SYSTEM += ("libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu")
# Names that torch-npu looks up by dlsym while it runs stand in its library as text.
LOOKED_UP = re.compile(rb"(?<=\0)((?:acl(?:rt|mdl|tdt|prof|op|sys)?[A-Z]|Hccl)[A-Za-z0-9]+)(?=\0)")


def main(packages: list[Path], folder: Path) -> None:
    """Write all libraries into `folder`."""
    torch_npu = _found(packages, "torch_npu")
    folder.mkdir(parents=True, exist_ok=True)
    libraries = [*torch_npu.glob("_C*.so"), *torch_npu.glob("lib/*.so")]
    present = set(_symbols([*libraries, *_others(_found(packages, "torch"))], "--defined-only"))
    wanted = {name for name in _symbols(libraries, "--undefined-only", weak=False) if name not in present}
    wanted = {name for name in wanted if not name.startswith(("Py", "_Py"))}
    text = (torch_npu / "lib/libtorch_npu.so").read_bytes()
    wanted |= {name.decode() for name in LOOKED_UP.findall(text) if not name.startswith(b"aclnn")}
    compiled = folder / "fake_acl.o"
    _run("gcc", "-c", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(compiled))
    written = set(_symbols([compiled], "--defined-only", dynamic=False))
    stubs = folder / "stubs.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(wanted - written)))
    flags = ("-shared", "-fPIC", "-fno-builtin", "-w")
    _run("gcc", *flags, "-o", str(folder / MAIN), str(compiled), str(stubs), f"-Wl,-soname,{MAIN}")
    for name in OTHERS:  # each is searched by itself; all must share one state
        linked = ("-Wl,--no-as-needed", f"-L{folder}", "-lascendcl", "-Wl,-rpath,$ORIGIN")
        _run("gcc", *flags, "-o", str(folder / f"{name}.so"), str(stubs), *linked, f"-Wl,-soname,{name}.so")
    print(f"{len(wanted - written)} stubs and {len(written)} functions for {torch_npu}")


def _found(packages: Iterable[Path], name: str) -> Path:
    return next(folder / name for folder in packages if (folder / name).is_dir())


def _others(torch: Path) -> Iterator[Path]:
    yield from torch.glob("lib/*.so*")
    for folder in LIBRARY_FOLDERS:
        yield from (path for name in SYSTEM if (path := Path(folder, name)).exists())


def _symbols(files: Iterable[Path], which: str, *, dynamic: bool = True, weak: bool = True) -> Iterator[str]:
    options = ("-D",) if dynamic else ()
    for file in files:
        for line in _run("nm", *options, which, str(file)).splitlines():
            fields = line.split()
            if len(fields) >= 2 and (weak or fields[-2] != "w"):
                yield fields[-1].split("@")[0]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main([Path(part) for part in sys.argv[1].split(":")], Path(sys.argv[2]))
