"""A model of another Trivet: `trivet:https://host:8000/name[:version-or-alias]`, with a key of that site."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from trivet.errors import ModelFilesError, RequestError
from trivet_registry.digests import Sha256, Size
from trivet_registry.sources.hubs import read_json
from trivet_registry.sources.remote import Remote, RemoteFile


class _File(msgspec.Struct):
    name: str
    size_bytes: Size
    sha256: Sha256 | None = None


class _Version(msgspec.Struct):
    name: str
    version: int
    files: list[_File]


def refuse_password(address: str) -> None:
    """It would be kept with the pull, the version and in the audit log. Raises: RequestError without it."""
    place = address.partition("//")[2].partition("/")[0]
    if "@" in place:
        raise RequestError(
            f"the address of {place.rpartition('@')[2][:200]} has a user or password in it, which would be "
            "kept; leave them out and give a key of that site with --key",
            param="source",
        )


def trivet_site(http: httpx2.Client, address: str, key: str | None) -> Remote:
    """Raises: RequestError for an address that is none; ModelFilesError where its files have no digests."""
    refuse_password(address)
    parts = urlsplit(address)
    name = parts.path.strip("/")
    if parts.scheme not in ("http", "https") or not parts.hostname or not name or "/" in name or parts.query:
        raise RequestError(
            f"{address[:200]!r} is no model of a Trivet; write trivet:https://host:8000/name:version",
            param="source",
        )
    headers = {"authorization": f"Bearer {key}"} if key else {}
    base = f"{parts.scheme}://{parts.netloc}/platform/v1/versions"
    found = read_json(http, f"{base}/{quote(name)}", headers, _Version, f"trivet:{address}")
    reference = f"{found.name}:{found.version}"
    for file in found.files:
        if file.sha256 is None:
            raise ModelFilesError(
                f"{reference} there has not been read through; on that site: trivet models verify {reference}"
            )
    files = [
        RemoteFile(
            file.name, file.size_bytes, f"{base}/{quote(reference)}/files/{quote(file.name)}", file.sha256
        )
        for file in found.files
    ]
    return Remote(f"trivet:{parts.scheme}://{parts.netloc}/{reference}", found.name, files, headers)
