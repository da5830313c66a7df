"""What a bundle says of itself."""

from __future__ import annotations

import msgspec

from trivet_registry.digests import Sha256, Size

FORMAT = "trivet-bundle 1"
MANIFEST, SIGNATURE, BLOBS = "manifest.json", "manifest.sig", "blobs/"
MAX_MANIFEST_BYTES = 16 << 20
MAX_SIGNATURE_BYTES = 1024


class BundledFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the model; whether its bytes are in this bundle."""

    name: str
    size_bytes: Size
    sha256: Sha256
    is_included: bool


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Signed as it is encoded."""

    format: str
    model: str
    version: int  # where it was made; an older one is not taken in after a newer one
    source: str
    licence: str | None
    created_at: str
    files: list[BundledFile]

    @property
    def digests(self) -> dict[str, str]:
        return {file.name: file.sha256 for file in self.files}
