"""Sites that exchange bundles, and bundles that nobody of us would make."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trivet.models.model_files import open_model
from trivet_registry.bundles.importing import Import, import_bundle
from trivet_registry.bundles.signing import PUBLIC
from trivet_registry.database import Database
from trivet_registry.digests import ignore_progress
from trivet_registry.model_store.store import ModelStore
from trivet_registry.models_store import list_models

Members = dict[str, bytes]


@dataclass
class Home:
    """One site."""

    folder: Path
    database: Database
    store: ModelStore
    tested: list[Path] = field(default_factory=list)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def take(
        self,
        path: Path,
        signer: Home | None = None,
        progress: Callable[[int], None] = ignore_progress,
        **fields: object,
    ) -> str:
        key = None if signer is None else (signer.keys / PUBLIC).read_text()
        wanted = replace(Import(path, self.keys, key=key), **fields)
        place = self.store, self.database, open_model
        return import_bundle(wanted, *place, self.tested.append, progress, ignore_progress)

    def models(self) -> list[str]:
        with self.database.reading() as session:
            return [version.reference for model in list_models(session) for version in model.versions]


def members(bundle: Path) -> Members:
    with tarfile.open(bundle) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def write(path: Path, content: Members) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
