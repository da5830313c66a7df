from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet.weights.index import WeightIndex
from trivet_registry.bundles.exporting import export_version
from trivet_registry.bundles.signing import own_key
from trivet_registry.database import Database, open_database
from trivet_registry.digests import digests_of
from trivet_registry.model_store.store import ModelStore
from trivet_registry.models_store import register_model

if TYPE_CHECKING:
    from tests.conftest import Registries

sys.path.append(str(Path(__file__).parent))  # bundle_sites
from bundle_sites import Home


@dataclass(frozen=True)
class Files:
    """What the registry reads of `trivet.models.model_files.ModelFiles`."""

    path: Path
    name: str
    files: tuple[Path, ...]
    format: str = "gguf"
    architecture: str = "llama"
    quantization: str = "q4_1"
    context_length: int = 2048
    size_bytes: int = 4
    licence: str | None = None
    spec: None = None
    chat_template: str | None = None
    weights: WeightIndex = field(default_factory=lambda: WeightIndex(()))
    config: dict[str, object] = field(default_factory=dict)


@pytest.fixture
def tmp_path(quick_disk: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tv", dir=quick_disk) as folder:
        yield Path(folder)


@pytest.fixture
def empty_registry_url(tmp_path: Path, registries: Registries) -> str:
    return registries.empty(tmp_path)


@pytest.fixture
def registry_url(tmp_path: Path, new_registry_url: Callable[[Path], str]) -> str:
    return new_registry_url(tmp_path)


@pytest.fixture
def db(registry_url: str) -> Iterator[Database]:
    database = open_database(registry_url)
    yield database
    database.close()


@pytest.fixture
def make_files(tmp_path: Path) -> Callable[..., Files]:
    def make(name: str = "tiny", content: bytes = b"GGUF") -> Files:
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        return Files(path=file, name=name, files=(file,), size_bytes=len(content))

    return make


@pytest.fixture
def homes(tmp_path: Path, new_registry_url: Callable[[Path], str]) -> Iterator[Callable[[str], Home]]:
    made: list[Home] = []

    def make(name: str) -> Home:
        folder = tmp_path / name
        folder.mkdir()
        database = open_database(new_registry_url(folder))
        made.append(Home(folder, database, ModelStore(folder / "models")))
        return made[-1]

    yield make
    for home in made:
        home.database.close()


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model("llama-tied", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def here(homes: Callable[[str], Home], tiny_folder: Path) -> Home:
    """With tiny:1 and tiny:2, which differ in one small file."""
    home = homes("here")
    for number in (1, 2):
        (tiny_folder / "generation_config.json").write_text(f'{{"top_k": {number}}}')
        files = open_model(tiny_folder)
        with home.database.session() as session:
            register_model(session, files, "tiny", digests=digests_of(files))
    return home


@pytest.fixture
def there(homes: Callable[[str], Home]) -> Home:
    return homes("there")


@pytest.fixture
def bundle(here: Home, tmp_path: Path) -> Path:
    export_version(here.database, "tiny:2", tmp_path / "tiny.bundle", own_key(here.keys))
    return tmp_path / "tiny.bundle"
