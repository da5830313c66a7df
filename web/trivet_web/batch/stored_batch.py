"""Files and batches as OpenAI shows them, and where a site keeps them: in its home, for `retention_days`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from trivet.config import Settings
from trivet_web.stored_objects import DAY_S, StoredObjects, sync

ACTIVE = ("validating", "in_progress", "finalizing")
Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expired"
]


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file; its content is beside it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int
    status: Literal["processed"] = "processed"
    owner: str | UnsetType = UNSET  # Principal.owner
    object: Literal["file"] = "file"


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(msgspec.Struct, frozen=True):
    """Why a batch was not run."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFaults(msgspec.Struct, frozen=True):
    """A list of one."""

    data: list[BatchFault]
    object: Literal["list"] = "list"


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch; times are seconds since the epoch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    errors: BatchFaults | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None
    owner: str | UnsetType = UNSET  # Principal.owner, and by which key it was made
    key_id: int | UnsetType = UNSET
    object: Literal["batch"] = "batch"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where they are."""

    files: StoredObjects[FileObject]
    batches: StoredObjects[BatchObject]
    folder: Path
    retention_s: float
    # Batches that were seen so: none goes on.
    _ended: set[str] = field(default_factory=set, init=False, compare=False)

    @classmethod
    def of(cls, settings: Settings) -> Shelf:
        folder, days = settings.paths.stored, settings.retention_days
        return cls(
            StoredObjects(folder / "files", FileObject, days, is_synced=True),
            StoredObjects(folder / "batches", BatchObject, days, is_synced=True),
            folder,
            days * DAY_S,
        )

    def content(self, file_id: str) -> Path:
        return self.folder / "files" / f"{file_id}.data"

    def result_id(self, batch_id: str, name: str) -> str:
        """The id of a batch's output or error file: always the same, and nobody can guess a batch's id."""
        return f"file_{hashlib.sha256(f'{batch_id} {name}'.encode()).hexdigest()[:32]}"

    def open_batches(self) -> Iterator[BatchObject]:
        """Those that have not ended, oldest first."""
        ids = self.batches.ids()
        self._ended.intersection_update(ids)
        for batch_id in reversed(ids):
            batch = None if batch_id in self._ended else self.batches.get(batch_id)
            if batch is not None and batch.status in ACTIVE:
                yield batch
            elif batch is not None:
                self._ended.add(batch_id)

    def results(self, batch_id: str) -> Path:
        """All answered lines in order; `Journal` writes it, and what it is made of beside it."""
        return self.folder / "batches" / f"{batch_id}.results"

    def cancel_mark(self, batch_id: str) -> Path:
        """There where somebody has cancelled it: only one process writes the batch itself."""
        return self.folder / "batches" / f"{batch_id}.cancel"

    def new_file(
        self, file_id: str, filename: str, purpose: str, owner: str | UnsetType = UNSET
    ) -> FileObject:
        """Put down what describes a content that is there already. Both outlast a power failure."""
        now_s = time.time()
        sync(self.content(file_id))
        made = FileObject(
            id=file_id,
            bytes=self.content(file_id).stat().st_size,
            created_at=int(now_s),
            filename=filename,
            purpose=purpose,
            expires_at=int(now_s + self.retention_s),
            owner=owner,
        )
        self.files.put(file_id, made)
        return made

    def shown(self, batch: BatchObject) -> BatchObject:
        """As a client sees it: one that was cancelled says so before its runner has noticed."""
        mark = self.cancel_mark(batch.id)
        if batch.status in ACTIVE and mark.exists():
            return msgspec.structs.replace(
                batch, status="cancelling", cancelling_at=int(mark.stat().st_mtime)
            )
        return batch
