"""kill -9 in whatever changes models or the registry: nothing is lost, and it can be done again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet_registry.bundles.signing import PUBLIC
from trivet_registry.database import open_database

sys.path.append(str(Path(__file__).parent))  # bundle_sites, local_hub, old_registries
from bundle_sites import Home
from local_hub import Hub, read_files, serving
from old_registries import ROWS, moved

pytestmark = pytest.mark.faults

RUNS = Path(__file__).parent / "crash_runs.py"


def num_kills(*arguments: object) -> int:
    command = [sys.executable, str(RUNS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """With a model in `tiny`, and one of other weights in `base`."""
    make_tiny_model("llama-tied", tmp_path / "made").rename(tmp_path / "tiny")
    (tmp_path / "tiny" / "generation_config.json").write_text('{"top_k": 1}')
    shutil.copytree(tmp_path / "tiny", tmp_path / "base")
    for file in (tmp_path / "base").glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    return tmp_path


def test_killed_while_files_are_copied_into_the_store(place: Path) -> None:
    assert num_kills("copy", place) > 10


def test_killed_while_a_model_is_pulled(place: Path) -> None:
    with serving(Hub(read_files(place / "tiny"))) as hub:
        assert num_kills("pull", place, hub.url) > 10


@pytest.mark.usefixtures("sqlite_only")
def test_killed_while_a_bundle_is_taken_in(place: Path, here: Home, bundle: Path) -> None:
    assert num_kills("bundle", place, bundle, here.keys / PUBLIC) > 10


def test_killed_while_the_store_is_collected(place: Path) -> None:
    assert num_kills("collect", place) > 5


def test_killed_while_the_registry_is_upgraded(empty_registry_url: str, tmp_path: Path) -> None:
    moved(empty_registry_url, "0001", is_upgrade=True, statements=ROWS)
    assert num_kills("upgrade", tmp_path, empty_registry_url) > 10
    open_database(empty_registry_url).close()
