"""What a backup says of itself."""

from __future__ import annotations

import msgspec

from trivet_registry.digests import Sha256, Size

FORMAT = 1
MANIFEST, REGISTRY, HOME = "backup.json", "registry.db", "home/"


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """One member; `name` is that in the tar."""

    name: str
    size_bytes: Size
    sha256: Sha256
    mode: int
    mtime_ns: int
    same_as: str | None = None  # name of an earlier member, of which this one is a hard link


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Encoded as JSON, the last member."""

    format: int
    trivet: str  # release that made it
    created_at: str
    home: str  # where paths in the registry lead
    has_models: bool
    files: list[KeptFile]
