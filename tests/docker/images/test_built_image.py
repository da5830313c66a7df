"""The steps of Dockerfile.cpu, carried out; what they make serves as its account, without a network."""

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
# The image's own command serves; its own health check says when; a model answers; SIGTERM ends it all.
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
trivet kernels build --isa host > /dev/null 2>&1 || echo no compiler
model=$(python3 -c 'from trivet.demo_model import find_demo_model; print(find_demo_model())')
trivet launch "$model" --name demo --backend cpu > /dev/null
echo "answer: $(trivet chat demo --max-tokens 16 --message 'Which metal is heaviest?')"
grep --recursive kernels=torch {home}/logs || echo native kernels
kill -TERM $serve
wait $serve || true
tail -n 1 /tmp/serve.log
"""


@pytest.fixture(scope="module")
def image(checkout: Path, cache: Path) -> Iterator[BuiltImage]:
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("only root, with debootstrap, can make a root file system")
    base = cache / "base"
    if not base.is_dir():
        make_base(base)
    with tempfile.TemporaryDirectory(prefix="image", dir=cache) as scratch:
        made = BuiltImage(
            checkout / "docker" / "Dockerfile.cpu", checkout, base, cache / "wheels", Path(scratch)
        )
        made.build()
        yield made


def test_it_serves_as_its_account_without_a_compiler_and_drains(image: BuiltImage) -> None:
    script = SESSION.format(
        serve=shlex.join([*image.entry, *image.command]),
        health=shlex.join(image.health),
        home=image.environ["TRIVET_HOME"],
    )
    environ = {**image.environ, "HOME": image.environ["TRIVET_HOME"]}
    done = subprocess.run(
        image.inside(["sh", "-e", "-c", script], environ, image.user, has_network=False),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(image.root / 'tmp/serve.log').read_text()}"
    lines = done.stdout.splitlines()
    assert lines[:4] == ["healthy", "10001", f"{environ['TRIVET_HOME']}/run/token", "no compiler"]
    assert re.search(r"^answer: \w+", done.stdout, re.MULTILINE)
    assert lines[-2:] == ["native kernels", "stopped"], "those that were built ahead are used"


def test_it_is_small_and_has_no_sources_of_ours(image: BuiltImage) -> None:
    assert not (image.root / "src").exists()
    assert not (image.root / "usr/bin/g++").exists()
    sizes = [
        path.lstat().st_size for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    assert sum(sizes) < 2.5e9
