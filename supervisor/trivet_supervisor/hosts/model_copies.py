"""Whether the model's files on this host are those that were registered: another would be served silently."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trivet.errors import ModelFilesError, Unavailable
from trivet.launching import ModelFile
from trivet_registry.digests import sha256_of

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0  # who waits for a start waits some seconds more; what takes longer is said


class _Read(msgspec.Struct, frozen=True):
    """What a file held when it had this size and time."""

    size_bytes: int
    mtime_ns: int
    sha256: str


class _Reading:
    """Reads a file through on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.num_bytes = 0
        self.sha256 = self.failure = ""
        self._path = path
        self.thread = threading.Thread(target=self._run, name=f"sha256-{path.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.sha256 = sha256_of(self._path, self._count)
        except ModelFilesError as error:
            self.failure = str(error)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes


class ModelCopies:
    """Sizes are compared at each start, contents once, where their digest is known. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "model-files.json"
        self._lock = threading.Lock()
        self._reading: dict[str, _Reading] = {}
        try:
            self._read = msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Read])
        except (OSError, msgspec.MsgspecError):
            self._read = {}

    def check(self, files: Sequence[ModelFile]) -> None:
        """Raises: Unavailable for one that is another, or is still being read."""
        for file in files:
            path = Path(file.path)
            try:
                status = path.stat()
            except OSError as error:
                raise Unavailable(
                    f"model file {path} is not on this host ({error.strerror}): models lie under the same "
                    "path on every host"
                ) from error
            if status.st_size != file.size_bytes:
                raise Unavailable(
                    f"model file {path} has {status.st_size} bytes on this host, and {file.size_bytes} were "
                    "registered: copy the model here again"
                )
        for file in files:
            if file.sha256:
                self._compare(file)

    def _compare(self, file: ModelFile) -> None:
        found = self._sha256(Path(file.path))
        if found != file.sha256:
            raise Unavailable(
                f"model file {file.path} has the SHA-256 {found[:12]}… on this host, and "
                f"{file.sha256[:12]}… was registered: copy the model here again"
            )

    def _sha256(self, path: Path) -> str:
        """Raises: Unavailable while it is being read."""
        status = path.stat()
        with self._lock:
            known = self._read.get(str(path))
            if known is not None and (known.size_bytes, known.mtime_ns) == (
                status.st_size,
                status.st_mtime_ns,
            ):
                return known.sha256
            reading = self._reading.get(str(path)) or _Reading(path)
            self._reading[str(path)] = reading
        reading.thread.join(PATIENCE_S)
        if reading.thread.is_alive():
            raise Unavailable(
                f"model file {path} is compared with its registered SHA-256, once on each host: "
                f"{reading.num_bytes >> 20} of {status.st_size >> 20} MiB"
            )
        with self._lock:
            self._reading.pop(str(path), None)
            if reading.failure:
                raise Unavailable(reading.failure)
            self._read[str(path)] = _Read(status.st_size, status.st_mtime_ns, reading.sha256)
            self._save()
        return reading.sha256

    def _save(self) -> None:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = self._file.with_suffix(".new")
            scratch.write_bytes(msgspec.json.encode(self._read))
            scratch.replace(self._file)
        except OSError as error:  # it is read once more by the next agent
            logger.warning("file=%s cannot be written: %s", self._file, error)
