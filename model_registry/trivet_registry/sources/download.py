"""Fetches a file by ranges: it goes on where it ended, after a cut connection, a cancel or a crash."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import httpx2

from trivet.errors import ModelFilesError, NotFound, PermissionDenied, Unavailable
from trivet_registry.digests import CHUNK_BYTES, Progress
from trivet_registry.model_store.store import ModelStore
from trivet_registry.sources.remote import RemoteFile
from trivet_registry.sources.watched_network import STALL_BYTES

NUM_TRIES = 6  # in a row that brought next to nothing
MIN_GAIN_BYTES = STALL_BYTES  # of a try that brought something
FIRST_WAIT_S = 0.5
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class Cut(Exception):
    """The connection ended, or the server asks to come again: what has come stays."""


def fetch(
    http: httpx2.Client,
    file: RemoteFile,
    headers: Mapping[str, str],
    store: ModelStore,
    progress: Progress,
    wait: Callable[[float], object] = time.sleep,
) -> str:
    """Into the store, with `adding` held. Returns the file's SHA-256.

    Args: progress: is told of every byte, also of those that were there; it may raise to cancel.

    Raises: ModelFilesError naming the file where its checksum or size is wrong; NotFound, PermissionDenied,
        Unavailable.
    """
    if file.sha256 is not None and store.has(file.sha256):
        progress(file.size_bytes)
        return file.sha256
    key = hashlib.sha256(f"{file.url} {file.sha256 or file.git_sha1 or file.size_bytes}".encode()).hexdigest()
    with _opened(store.partial / key) as partial:
        progress(partial.seek(0, os.SEEK_END))
        failures = 0
        while partial.seek(0, os.SEEK_END) < file.size_bytes:
            before = partial.tell()
            try:
                _fetch_rest(http, file, headers, partial, progress)
            except Cut as error:
                gained = partial.seek(0, os.SEEK_END) - before
                failures = 0 if gained >= MIN_GAIN_BYTES else failures + 1
                if failures >= NUM_TRIES:
                    raise Unavailable(
                        f"{file.name} cannot be fetched: {error}; pull again to go on"
                    ) from None
                _wait(FIRST_WAIT_S * 2**failures, wait, progress)
        path = store.partial / key
        sha256 = _checked(file, partial, path, progress)
        partial.flush()
        return store.take(path, sha256)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The partial file, locked until it is closed or the process ends. Raises: Unavailable while it is."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                "the same file is being pulled already; wait for that, then pull again"
            ) from None
        yield file


def _fetch_rest(
    http: httpx2.Client, file: RemoteFile, headers: Mapping[str, str], partial: BinaryIO, progress: Progress
) -> None:
    """Raises: Cut, where it pays to come again; NotFound, PermissionDenied, Unavailable."""
    start = partial.seek(0, os.SEEK_END)
    asked = {**headers, "accept-encoding": "identity"} | ({"range": f"bytes={start}-"} if start else {})
    try:
        with http.stream("GET", file.url, headers=asked) as response:
            _check_status(file, response)
            if start and response.status_code != 206:  # it gives the whole
                partial.truncate(0)
                partial.seek(0)
                progress(-start)
                start = 0
            for chunk in response.iter_raw():  # as they come: nothing is lost with the connection
                start += len(chunk)
                if start > file.size_bytes:
                    partial.truncate(0)
                    raise ModelFilesError(
                        f"{file.name} is longer than the {file.size_bytes} bytes it should have"
                    )
                partial.write(chunk)
                progress(len(chunk))
    except httpx2.TooManyRedirects as error:
        raise Unavailable(f"{file.name}: {error}") from error
    except httpx2.TransportError as error:
        raise Cut(f"{type(error).__name__}: {error}") from error
    finally:
        partial.flush()
    if start < file.size_bytes:
        raise Cut(f"it ended after {start} of {file.size_bytes} bytes")


def _check_status(file: RemoteFile, response: httpx2.Response) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    if status in _TRY_AGAIN:
        raise Cut(f"the server answers {status}")
    if status in (401, 403):
        raise PermissionDenied(
            f"{file.name}: the server answers {status}; a key or token is needed, or another"
        )
    if status == 404:
        raise NotFound(f"{file.name} is not there any more ({status})")
    raise Unavailable(f"{file.name}: the server answers {status}")


def _wait(seconds: float, wait: Callable[[float], object], progress: Progress) -> None:
    """In short pieces, so that it can be cancelled."""
    while seconds > 0:
        progress(0)
        wait(min(seconds, 1.0))
        seconds -= 1.0


def _checked(file: RemoteFile, partial: BinaryIO, path: Path, progress: Progress) -> str:
    """SHA-256 of what has come. Raises: ModelFilesError; the file is then fetched anew."""
    partial.seek(0)
    sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    while chunk := partial.read(CHUNK_BYTES):
        sha256.update(chunk)
        if file.git_sha1 is not None:
            git_sha1.update(chunk)
        progress(0)
    for kind, expected, found in (
        ("SHA-256", file.sha256, sha256.hexdigest()),
        ("git's SHA-1", file.git_sha1, git_sha1.hexdigest()),
    ):
        if expected is not None and expected != found:
            path.unlink()
            raise ModelFilesError(
                f"{file.name} has {kind} {found} and should have {expected}; it is gone: pull again, and if "
                "that fails, too, do not trust this source"
            )
    return sha256.hexdigest()
