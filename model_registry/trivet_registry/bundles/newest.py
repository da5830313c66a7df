"""The newest bundle of each signer's model: an older one is no answer to it, whatever was removed since."""

from __future__ import annotations

from sqlalchemy.orm import Session

from trivet.errors import Conflict
from trivet_registry.bundles.manifest import Manifest
from trivet_registry.digests import content_digest
from trivet_registry.tables import BundleNumber


def refuse_older(session: Session, manifest: Manifest, signer: str, *, allows_older: bool) -> None:
    """Raises: Conflict for an older number, and for the newest one with other files in it."""
    row = session.get(BundleNumber, (signer, manifest.model))
    if row is None:
        return
    if row.newest > manifest.version and not allows_older:
        raise Conflict(
            f"the bundle is of version {manifest.version} of {manifest.model}, and version {row.newest} was "
            "taken in from the same signer before; to go back, move an alias, or import with --allow-older",
            param="source",
        )
    if row.newest == manifest.version and row.digest not in (None, content_digest(manifest.digests)):
        raise Conflict(
            f"the bundle is of version {manifest.version} of {manifest.model} with other files than the one "
            "of that number which was taken in from the same signer before; ask the signer for a new number",
            param="source",
        )


def remember(session: Session, manifest: Manifest, signer: str) -> None:
    """In the transaction that registers it; an older one that was allowed changes nothing."""
    row = session.get(BundleNumber, (signer, manifest.model))
    if row is None:
        row = BundleNumber(signer=signer, model=manifest.model, newest=manifest.version)
        session.add(row)
    if manifest.version >= row.newest:
        row.newest, row.digest = manifest.version, content_digest(manifest.digests)
