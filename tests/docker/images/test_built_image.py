"""The steps of Dockerfile.cpu and .cuda, carried out; what they make serves as its account, offline."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_image import BuiltImage, make_base

DEADLINE_S = 240
# The image's own command serves; its own health check says when; SIGTERM ends it all.
SESSION = """
TINI_SUBREAPER=1 {serve} > /tmp/serve.log 2>&1 &
serve=$!
for turn in $(seq 600); do
    if {health} 2>/dev/null; then echo healthy; break; fi
    kill -0 $serve
    sleep 0.1
done
id -u
ls {home}/run/token
{use}
kill -TERM $serve
wait $serve || true
tail -n 1 /tmp/serve.log
"""
CHAT = """
trivet kernels build --isa host > /dev/null 2>&1 || echo no compiler
model=$(python3 -c 'from trivet.demo_model import find_demo_model; print(find_demo_model())')
trivet launch "$model" --name demo --backend cpu > /dev/null
echo "answer: $(trivet chat demo --max-tokens 16 --message 'Which metal is heaviest?')"
grep --recursive kernels=torch {home}/logs || echo native kernels
"""
LOOK = """
python3 -c 'import pynvml, triton; print("triton", triton.__version__)'
gcc --version > /dev/null && echo a compiler for the launchers of Triton
ls $TRIVET_KERNELS_DIR | wc -l
trivet devices
"""


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest, checkout: Path, cache: Path) -> Iterator[BuiltImage]:
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("only root, with debootstrap, can make a root file system")
    base = cache / "base"
    if not base.is_dir():
        make_base(base)
    with tempfile.TemporaryDirectory(prefix="image", dir=cache) as scratch:
        file = checkout / "docker" / f"Dockerfile.{request.param}"
        made = BuiltImage(file, checkout, base, cache / "wheels", Path(scratch))
        made.build()
        yield made


def used(image: BuiltImage, use: str) -> list[str]:
    """What a session prints, of which `use` is a part."""
    home = image.environ["TRIVET_HOME"]
    script = SESSION.format(
        serve=shlex.join([*image.entry, *image.command]),
        health=shlex.join(image.health),
        home=home,
        use=use.format(home=home),
    )
    done = subprocess.run(
        image.inside(
            ["sh", "-e", "-c", script], {**image.environ, "HOME": home}, image.user, has_network=False
        ),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(image.root / 'tmp/serve.log').read_text()}"
    lines = done.stdout.splitlines()
    assert lines[:3] == ["healthy", "10001", f"{home}/run/token"]
    assert lines[-1] == "stopped"
    return lines[3:-1]


@pytest.mark.parametrize("image", ["cpu"], indirect=True)
def test_it_serves_as_its_account_without_a_compiler_and_drains(image: BuiltImage) -> None:
    first, *answer, last = used(image, CHAT)
    assert first == "no compiler"
    assert re.search(r"^answer: \w+", "\n".join(answer), re.MULTILINE)
    assert last == "native kernels", "those that were built ahead are used"


@pytest.mark.parametrize("image", ["cpu"], indirect=True)
def test_it_is_small_and_has_no_sources_of_ours(image: BuiltImage) -> None:
    assert not (image.root / "src").exists()
    assert not (image.root / "usr/bin/g++").exists()
    sizes = [
        path.lstat().st_size for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    assert sum(sizes) < 2.5e9


@pytest.mark.parametrize("image", ["cuda"], indirect=True)
def test_that_for_cuda_serves_without_a_gpu_and_says_that_there_is_none(image: BuiltImage) -> None:
    triton, compiler, num_kernels, *devices = used(image, LOOK)
    assert triton.startswith("triton 3.")
    assert compiler
    assert int(num_kernels) > 0
    (cuda,) = [line for line in devices if line.startswith("cuda")]
    assert "no NVIDIA GPU: none of PCI vendor 0x10de on the bus" in cuda
    assert not (image.root / "src").exists()
