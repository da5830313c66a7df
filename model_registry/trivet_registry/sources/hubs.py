"""Hugging Face's and ModelScope's lists of files, by their HTTP interfaces, and those of their mirrors."""

from __future__ import annotations

import re
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from trivet.errors import ModelFilesError, ModelNotFound, PermissionDenied, RequestError, Unavailable
from trivet_registry.digests import Sha256, Size, is_sha256
from trivet_registry.sources.remote import Remote, RemoteFile

T = TypeVar("T")
MAX_LIST_BYTES = 64 << 20
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)


class _Lfs(msgspec.Struct):
    sha256: Sha256
    size: Size


class _Sibling(msgspec.Struct, rename="camel"):
    rfilename: str
    size: Size | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _ModelInfo(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []


class _ScopeFile(msgspec.Struct, rename="pascal"):
    path: str
    size: Size = 0
    sha256: str | None = None
    type: str = "blob"


class _ScopeData(msgspec.Struct, rename="pascal"):
    files: list[_ScopeFile] = []


class _ScopeAnswer(msgspec.Struct, rename="pascal"):
    code: int = 200
    message: str = ""
    data: _ScopeData | None = None


def _size_of(file: _Sibling, url: str) -> int:
    """Raises: Unavailable where the list has none: the file would be taken for an empty one."""
    size = file.lfs.size if file.lfs else file.size
    if size is None:
        raise Unavailable(
            f"the list at {url} has no size of {file.rfilename[:100]!r}; use a hub or a mirror that tells "
            "sizes"
        )
    return size


def hugging_face(
    http: httpx2.Client, endpoint: str, repository: str, revision: str | None, token: str | None
) -> Remote:
    """`endpoint` is the hub or a mirror of it. Raises: ModelNotFound, PermissionDenied, Unavailable."""
    _check(repository, revision)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    info = read_json(http, url, headers, _ModelInfo, f"hf:{repository}")
    files = [
        RemoteFile(
            name=one.rfilename,
            size_bytes=_size_of(one, url),
            url=f"{endpoint}/{repository}/resolve/{quote(info.sha)}/{quote(one.rfilename)}",
            sha256=one.lfs.sha256 if one.lfs else None,
            git_sha1=None if one.lfs else one.blob_id,
        )
        for one in info.siblings
    ]
    return Remote(f"hf:{repository}@{info.sha}", repository.partition("/")[2], files, headers)


def model_scope(
    http: httpx2.Client, endpoint: str, repository: str, revision: str | None, token: str | None
) -> Remote:
    """As `hugging_face`. ModelScope lists a branch or tag, and each file's SHA-256, which is what pins it.

    Raises: also ModelFilesError for a file without one: the branch could move before it has come.
    """
    _check(repository, revision)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    branch = quote(revision or "master", safe="")
    base = f"{endpoint}/api/v1/models/{repository}/repo"
    url = f"{base}/files?Revision={branch}&Recursive=true"
    answer = read_json(http, url, headers, _ScopeAnswer, f"ms:{repository}")
    if answer.data is None:
        raise ModelNotFound(f"ms:{repository}: {answer.message or answer.code}", param="source")
    files = [
        RemoteFile(
            name=one.path,
            size_bytes=one.size,
            url=f"{base}?Revision={branch}&FilePath={quote(one.path, safe='')}",
            sha256=_sha256(one, repository),
        )
        for one in answer.data.files
        if one.type == "blob"
    ]
    return Remote(f"ms:{repository}@{revision or 'master'}", repository.partition("/")[2], files, headers)


def _sha256(file: _ScopeFile, repository: str) -> str:
    """Raises: ModelFilesError."""
    if file.sha256 is None or not is_sha256(file.sha256):
        raise ModelFilesError(
            f"ms:{repository} lists {file.path[:200]!r} without its SHA-256, so that nobody could tell "
            "whether it is the file of this list; take the model from elsewhere"
        )
    return file.sha256


def read_json(http: httpx2.Client, url: str, headers: dict[str, str], kind: type[T], what: str) -> T:
    """Raises: ModelNotFound, PermissionDenied, Unavailable naming the source."""
    data = bytearray()
    try:
        with http.stream("GET", url, headers=headers) as response:
            if response.status_code in (401, 403):
                raise PermissionDenied(
                    f"{what} is not open to us ({response.status_code}): it does not exist, or it needs a key"
                )
            if response.status_code == 404:
                raise ModelNotFound(f"{what} is not there, or not in this revision", param="source")
            if response.status_code != 200:
                raise Unavailable(f"{what}: the server answers {response.status_code}; try again later")
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_LIST_BYTES:
                    raise Unavailable(f"{what}: the list of files has more than {MAX_LIST_BYTES >> 20} MiB")
        return msgspec.json.decode(data, type=kind)
    except httpx2.HTTPError as error:
        raise Unavailable(f"{what} cannot be reached: {type(error).__name__}: {error}") from error
    except msgspec.MsgspecError as error:
        raise Unavailable(
            f"{what}: the server's list of files is none of the expected form: {error}"
        ) from error


def _check(repository: str, revision: str | None) -> None:
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise RequestError(f"{repository[:200]!r} is no repository; write org/name", param="source")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise RequestError(
            f"revision {revision[:200]!r} is none; it is a branch, tag or commit", param="source"
        )
