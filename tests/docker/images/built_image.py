"""Carries out a Dockerfile in root file systems of its own, where there is no container runtime.

The base image is a minimal Debian with Python, made by debootstrap; packages of Python come from a folder of
wheels. What a builder would do besides is left out: layers, caches, other base images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import dockerfile

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WHEELS = "/wheels"
STEP_TIMEOUT_S = 400
# $1 is the root, $2 the folder of wheels, the rest a command; mounts end with it.
_INSIDE = """
root=$1 wheels=$2; shift 2
mount -t proc proc "$root/proc"
mount --bind "$wheels" "$root/wheels"
for device in null zero urandom random; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
ip link set lo up 2>/dev/null || true
exec "$@"
"""


class BuiltImage:
    """The last stage of a Dockerfile, and how it is started."""

    def __init__(self, file: Path, context: Path, base: Path, wheels: Path, scratch: Path) -> None:
        self.command: list[str] = []
        self.entry: list[str] = []
        self.health: list[str] = []
        self.environ: dict[str, str] = {}
        self.user = "0:0"
        self.root = scratch
        self._file, self._context, self._base, self._wheels, self._scratch = (
            file,
            context,
            base,
            wheels,
            scratch,
        )
        self._stages: dict[str, Path] = {}
        self._args: dict[str, str] = {}
        self._workdir = "/"

    def build(self) -> None:
        """Raises: AssertionError with what the step has printed."""
        for step in dockerfile.parse_file(str(self._file)):
            carry_out = getattr(self, f"_do_{step.cmd.lower()}", None)
            if carry_out is not None:
                carry_out(list(step.value), list(step.flags))

    # ---- steps ----

    def _do_from(self, value: list[str], flags: list[str]) -> None:
        name = value[2] if len(value) == 3 else f"stage{len(self._stages)}"
        self.root = self._stages[name] = self._scratch / name
        subprocess.run(["cp", "--archive", "--reflink=auto", self._base, self.root], check=True)
        (self.root / WHEELS[1:]).mkdir()
        self._args, self._workdir, self.user = {}, "/", "0:0"
        self.environ = {"PATH": BASE_PATH}

    def _do_arg(self, value: list[str], flags: list[str]) -> None:
        name, _, default = value[0].partition("=")
        self._args[name] = default

    def _do_env(self, value: list[str], flags: list[str]) -> None:
        for name, text in zip(value[::2], value[1::2], strict=True):
            self.environ[name] = text.replace("$PATH", self.environ["PATH"])

    def _do_workdir(self, value: list[str], flags: list[str]) -> None:
        self._workdir = value[0]
        self._inside(self._workdir).mkdir(parents=True, exist_ok=True)

    def _do_copy(self, value: list[str], flags: list[str]) -> None:
        source, target = value
        stages = [flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")]
        if stages:
            origin = self._stages[stages[0]] / source.lstrip("/")
            subprocess.run(["cp", "--archive", origin, self._inside(target)], check=True)
            return
        assert (source, target) == (".", "."), "only the whole context is copied"
        ignored = (self._context / ".dockerignore").read_text().splitlines()
        for name in (line[1:] for line in ignored if line.startswith("!")):
            place = self._inside(self._workdir) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (self._context / name).is_dir() else shutil.copy2
            copy(self._context / name, place)

    def _do_run(self, value: list[str], flags: list[str]) -> None:
        environ = {
            **os_proxies(),
            **self.environ,
            **self._args,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": WHEELS,
        }
        done = subprocess.run(
            self.inside(
                ["sh", "-c", f'cd "{self._workdir}" && {value[0]}'], environ, "0:0", has_network=True
            ),
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"RUN {value[0]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def _do_user(self, value: list[str], flags: list[str]) -> None:
        self.user = value[0]

    def _do_healthcheck(self, value: list[str], flags: list[str]) -> None:
        self.health = value[1:]

    def _do_entrypoint(self, value: list[str], flags: list[str]) -> None:
        self.entry = value

    def _do_cmd(self, value: list[str], flags: list[str]) -> None:
        self.command = value

    # ---- in the root ----

    def inside(
        self, command: Sequence[str], environ: Mapping[str, str], user: str, *, has_network: bool
    ) -> list[str]:
        """A command line that runs `command` in the root, in namespaces that end with it."""
        spaces = ["--mount", "--pid", "--fork", "--kill-child", *([] if has_network else ["--net"])]
        words = [f"{name}={text}" for name, text in environ.items()]
        chroot = ["chroot", f"--userspec={user}", str(self.root), "env", "-i", *words, *command]
        return ["unshare", *spaces, "sh", "-ec", _INSIDE, "sh", str(self.root), str(self._wheels), *chroot]

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def os_proxies() -> dict[str, str]:
    """How this host reaches others, for apt-get in the root."""
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def make_base(folder: Path) -> None:
    """Debian of this host's release with Python, as `python:3-slim` is one. Takes a minute.

    Raises: CalledProcessError.
    """
    draft = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )["VERSION_CODENAME"]
    include = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(
        ["debootstrap", "--variant=minbase", include, release, draft], check=True, timeout=STEP_TIMEOUT_S
    )
    for name in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(Path("/") / name, draft / name)
    ways = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True)
    (draft / "etc/apt/apt.conf.d/99-as-outside").write_text(ways.stdout)
    draft.rename(folder)
