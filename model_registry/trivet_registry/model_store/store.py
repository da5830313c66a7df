"""Files by their SHA-256, and versions made of them; the package's docstring has the layout."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trivet.errors import Conflict, ModelFilesError, Unavailable
from trivet_registry.digests import (
    CHUNK_BYTES,
    Progress,
    content_digest,
    ignore_progress,
    is_sha256,
    sha256_of,
    unchanged,
)
from trivet_registry.model_store.opening import CheckPlace, anywhere, open_in_place

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_BUILDING = "building-"  # a tree whose links are not all there


@dataclass(frozen=True, slots=True)
class Stored:
    """What is in the store, or was removed from it."""

    num_files: int
    size_bytes: int


class ModelStore:
    """The store in `root`. Use it from any thread and process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs, self._trees, self.partial = root / "blobs", root / "trees", root / "partial"
        self._damaged = root / "damaged"

    @contextmanager
    def adding(self) -> Iterator[None]:
        """While it lasts nothing is collected. Around all from the first file to the version's row.

        Raises: Unavailable for a disk that takes nothing more.
        """
        try:
            with self._locked(fcntl.LOCK_SH):
                yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise Unavailable(
                f"{self.root} takes nothing more: {error.strerror}; make room (trivet models gc), or set "
                "TRIVET_HOME to a larger disk, then do it again: what has come stays"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises: Conflict while anybody adds files."""
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except BlockingIOError:
            raise Conflict("models are being pulled or imported; collect when that is done") from None

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        for folder in (self._blobs, self._trees, self.partial, self._damaged):
            folder.mkdir(parents=True, exist_ok=True)
        with open(os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, how)
            yield

    def blob(self, sha256: str) -> Path:
        """Where a file of these bytes is, or would be. Raises: ModelFilesError for what is no SHA-256."""
        if not is_sha256(sha256):
            raise ModelFilesError(f"{sha256[:200]!r} is no SHA-256; do not use this model")
        return self._blobs / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.blob(sha256).is_file()

    def tree(self, digest: str) -> Path:
        """The folder of a version, by the digest of its files."""
        return self._trees / digest

    def require_room(self, size_bytes: int) -> None:
        """Raises: Unavailable where the disk has less."""
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if size_bytes > free:
            raise Unavailable(
                f"{size_bytes / 2**30:.1f} GiB of files come and {self.root} has {free / 2**30:.1f} free; "
                "make room (trivet models gc), or set TRIVET_HOME to a larger disk"
            )

    def add_file(
        self,
        source: Path,
        progress: Progress = ignore_progress,
        folder: Path | None = None,
        check: CheckPlace = anywhere,
    ) -> str:
        """Copy a file in. Returns its SHA-256.

        Args: folder: of the model, where it is somebody's; check: see `open_in_place`.

        Raises: ModelFilesError where it cannot be read.
        """
        temporary = self.partial / f"copy-{secrets.token_hex(8)}"
        digest = hashlib.sha256()
        try:
            with (
                open_in_place(source, folder or source.parent, check) as reading,
                unchanged(reading, source),
                temporary.open("xb") as writing,
            ):
                while chunk := reading.read(CHUNK_BYTES):
                    digest.update(chunk)
                    writing.write(chunk)
                    progress(len(chunk))
            return self.take(temporary, digest.hexdigest())
        except FileNotFoundError as error:
            raise ModelFilesError(f"{source} cannot be read: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def take(self, file: Path, sha256: str) -> str:
        """Make a file of the same disk, whose SHA-256 the caller has computed, a blob.

        A whole blob that is there already stays: versions share it. A damaged one is replaced, also in the
        versions that have it.
        """
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.chmod(0o444)
        blob = self.blob(sha256)
        with self._writing(blob):
            if blob.is_file() and sha256_of(blob) == sha256:
                file.unlink()
                return sha256
            self._set_aside(blob)
            file.replace(blob)
            _sync_folder(blob.parent)
            self._relink(blob)
        return sha256

    def set_damaged_aside(self, digests: Iterable[str]) -> None:
        """Blobs that are not what their names say count as missing: whoever adds the file again repairs them.

        Hold `adding`. Versions that have them keep what they have until then.
        """
        for blob in map(self.blob, digests):
            if blob.is_file():
                with self._writing(blob):
                    if sha256_of(blob) != blob.name:
                        self._set_aside(blob)

    @contextmanager
    def _writing(self, blob: Path) -> Iterator[None]:
        """Nobody else writes or replaces this blob; the lock is on its folder, and ends with the process."""
        blob.parent.mkdir(exist_ok=True)
        handle = os.open(blob.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _set_aside(self, blob: Path) -> None:
        if blob.exists():
            blob.replace(self._damaged / blob.name)

    def _relink(self, blob: Path) -> None:
        """In all trees, where a link to the damaged one is."""
        damaged = self._damaged / blob.name
        if damaged.exists():
            for place in [file for file in self._trees.rglob("*") if file.is_file()]:
                if place.samefile(damaged):
                    self._link(blob, place)
            damaged.unlink()

    def _link(self, blob: Path, place: Path) -> None:
        """In place of what is there."""
        temporary = self.partial / f"link-{secrets.token_hex(8)}"
        temporary.hardlink_to(blob)
        temporary.replace(place)
        _sync_folder(place.parent)

    def build_tree(self, digests: Mapping[str, str]) -> Path:
        """The folder of a version whose blobs are all here. Raises: ModelFilesError for an unsafe name."""
        tree = self.tree(content_digest(digests))
        if tree.is_dir():
            self._repair_tree(tree, digests)
            return tree
        building = self._trees / f"{_BUILDING}{secrets.token_hex(8)}"
        building.mkdir()
        try:
            for name, sha256 in digests.items():
                place = building / safe_name(name)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.hardlink_to(self.blob(sha256))
            _sync_folder(building)
            building.rename(tree)
        except OSError:
            if not tree.is_dir():  # another has built the same meanwhile
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        _sync_folder(self._trees)
        return tree

    def _repair_tree(self, tree: Path, digests: Mapping[str, str]) -> None:
        """Whatever took the place of a file is replaced by its blob."""
        for name, sha256 in digests.items():
            blob, place = self.blob(sha256), tree / safe_name(name)
            if not place.exists() or not place.samefile(blob):
                self._link(blob, place)

    def collect(self, used: Mapping[str, frozenset[str]]) -> Stored:
        """Remove what no version needs, with `alone` held.

        Args: used: the SHA-256 of the files of each version in the store, by the version's digest.
        """
        for tree in list(self._trees.iterdir()):
            if tree.name not in used:
                shutil.rmtree(tree)
        keep = frozenset().union(*used.values()) if used else frozenset()
        gone = [blob for blob in self._blobs.glob("??/*") if blob.name not in keep]
        gone += [file for file in self._damaged.iterdir() if file.name not in keep]
        gone += [file for file in self.partial.iterdir() if file.is_file()]
        freed = sum(file.stat().st_size for file in gone)
        for file in gone:
            file.unlink()
        return Stored(len(gone), freed)

    def digests(self) -> list[str]:
        """SHA-256 of all blobs."""
        return sorted(blob.name for blob in self._blobs.glob("??/*"))

    def usage(self) -> Stored:
        """All blobs."""
        sizes = [blob.stat().st_size for blob in self._blobs.glob("??/*")]
        return Stored(len(sizes), sum(sizes))


def check_names(names: Sequence[str]) -> None:
    """Of files that shall lie in one folder. Raises: ModelFilesError."""
    seen: set[str] = set()
    for name in names:
        safe_name(name)
        if name in seen:
            raise ModelFilesError(f"file {name[:200]!r} is listed twice; do not use this model")
        seen.add(name)
    for name in names:
        above = next((str(folder) for folder in Path(name).parents if str(folder) in seen), None)
        if above is not None:
            raise ModelFilesError(f"{name[:200]!r} would lie below the file {above!r}; do not use this model")


def safe_name(name: str) -> Path:
    """A relative path that stays in its folder. Raises: ModelFilesError."""
    path = Path(name)
    is_plain = all(part not in ("", ".", "..") and "\\" not in part for part in name.split("/"))
    has_controls = any(character < " " or character == "\x7f" for character in name)
    if path.is_absolute() or not is_plain or has_controls or len(name) > 255:
        raise ModelFilesError(
            f"file name {name[:200]!r} leads out of the model's folder, has control characters or is longer "
            "than 255; do not use this model"
        )
    return path


def differences(files: Mapping[str, Path], digests: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with each file that is not as it was, by name. Reads every byte."""
    wrong = {}
    for name, path in files.items():
        if not path.is_file():
            wrong[name] = f"{path} is missing"
        elif name in digests and (found := sha256_of(path)) != digests[name]:
            wrong[name] = f"{path} has SHA-256 {found}; it was registered with {digests[name]}"
    return wrong


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
