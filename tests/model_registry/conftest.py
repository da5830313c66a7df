from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trivet.weights.index import WeightIndex
from trivet_registry.database import Database, open_database


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
