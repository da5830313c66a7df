"""Brings a model from a source into the store and registers it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from trivet.errors import RequestError, Unavailable
from trivet_registry.database import Database
from trivet_registry.digests import Progress
from trivet_registry.model_store.keeping import open_stored, register_stored
from trivet_registry.model_store.store import ModelStore
from trivet_registry.sources.download import fetch
from trivet_registry.sources.guarded_http import Resolve, guarded_client, resolve
from trivet_registry.sources.hubs import hugging_face, model_scope
from trivet_registry.sources.pickled import as_safetensors
from trivet_registry.sources.remote import Remote, chosen_files
from trivet_registry.sources.trivet_site import trivet_site

if TYPE_CHECKING:
    from trivet.config import Settings
    from trivet_registry.model_store.keeping import Opens

_SOURCE = re.compile(r"(hf|ms):([^@:]+)(?:@([^:]+))?(?::(.+))?")
KINDS = ("hf:", "ms:", "trivet:")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the site's settings say about sources."""

    hf_endpoint: str
    ms_endpoint: str
    allows_private: bool = False
    allows_pickle: bool = False
    timeout_s: float = math.inf
    proxy: str = ""
    resolves: Resolve = resolve

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(
            settings.hf_endpoint.rstrip("/"),
            settings.ms_endpoint.rstrip("/"),
            settings.private_sources,
            settings.allow_pickle,
            settings.pull_timeout_s,
            settings.source_proxy,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to pull; `key` is a token of the source, which is kept nowhere."""

    source: str
    name: str | None = None  # to register it under; None: the source's own
    key: str | None = None


def pull(
    wanted: Wanted,
    rules: Rules,
    store: ModelStore,
    database: Database,
    opens: Opens,
    progress: Progress,
    expect: Callable[[int], None] = lambda size_bytes: None,
) -> str:
    """Returns the reference of the version, "name:3": an old one where the same files are there already.

    Args:
        opens: opens a model's files, and refuses what cannot be served.
        progress, expect: are told of bytes that have come, and first how many will; both may raise to cancel.
            `progress` is also asked each second, with 0, while nothing comes.

    Raises: TrivetError with the reason.
    """
    progress = _timed(progress, rules.timeout_s)
    with (
        store.adding(),
        guarded_client(
            (rules.hf_endpoint, rules.ms_endpoint),
            allows_private=rules.allows_private,
            resolves=rules.resolves,
            proxy=rules.proxy,
            check=lambda: progress(0),
        ) as http,
    ):
        remote, part = list_source(http, wanted, rules)
        files = chosen_files(remote.files, part, allows_pickle=rules.allows_pickle)
        expect(sum(file.size_bytes for file in files))
        missing = [f for f in files if f.sha256 is None or not store.has(f.sha256)]
        store.require_room(sum(file.size_bytes for file in missing))
        digests = {file.name: fetch(http, file, remote.headers, store, progress) for file in files}
        digests = as_safetensors(store, digests, progress)
        model = open_stored(store, digests, opens)
        progress(0)  # the last moment to cancel
        with database.session() as session:
            source = remote.source if part is None else f"{remote.source}:{part}"
            row = register_stored(session, model, digests, wanted.name or remote.name, source)
            return row.reference


def _timed(progress: Progress, timeout_s: float) -> Progress:
    """It raises Unavailable once the whole pull has taken longer."""
    end_s = time.monotonic() + timeout_s

    def timed(count: int) -> None:
        if time.monotonic() > end_s:
            raise Unavailable(
                f"the pull was not done after {timeout_s:.0f} s (pull_timeout_s); what has come stays: "
                "pull again to go on"
            )
        progress(count)

    return timed


def list_source(http: httpx2.Client, wanted: Wanted, rules: Rules) -> tuple[Remote, str | None]:
    """What is there, and the part of a file's name that was asked for."""
    if wanted.source.startswith("trivet:"):
        return trivet_site(http, wanted.source.removeprefix("trivet:"), wanted.key), None
    match = _SOURCE.fullmatch(wanted.source)
    if match is None:
        raise RequestError(
            f"source {wanted.source[:200]!r} is none; write hf:org/name[@revision][:FILE], "
            "ms:org/name[...] or trivet:URL/name",
            param="source",
        )
    kind, repository, revision, part = match.groups()
    if kind == "hf":
        return hugging_face(http, rules.hf_endpoint, repository, revision, wanted.key), part
    return model_scope(http, rules.ms_endpoint, repository, revision, wanted.key), part
