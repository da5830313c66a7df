"""Model files of another host: compared before an engine starts over them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trivet.errors import Unavailable
from trivet.launching import ModelFile
from trivet_supervisor.hosts import model_copies
from trivet_supervisor.hosts.model_copies import ModelCopies


@pytest.fixture
def file(tmp_path: Path) -> ModelFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return ModelFile(str(path), 7, hashlib.sha256(b"weights").hexdigest())


def test_a_whole_copy_is_read_through_once(
    tmp_path: Path, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ModelCopies(tmp_path).check([file])
    monkeypatch.setattr(model_copies, "sha256_of", lambda path, progress: pytest.fail("read again"))
    ModelCopies(tmp_path).check([file])


def test_another_file_is_refused_with_what_would_do(tmp_path: Path, file: ModelFile) -> None:
    copies = ModelCopies(tmp_path)
    copies.check([file])
    Path(file.path).write_bytes(b"Weights")
    with pytest.raises(Unavailable, match="was registered: copy the model here again"):
        copies.check([file])
    Path(file.path).write_bytes(b"weight")
    with pytest.raises(Unavailable, match=r"has 6 bytes on this host, and 7 were registered"):
        copies.check([file])
    Path(file.path).unlink()
    with pytest.raises(Unavailable, match="the same path on every host"):
        copies.check([file])


def test_a_long_comparison_is_told_and_goes_on(
    tmp_path: Path, file: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    may_end = threading.Event()
    monkeypatch.setattr(model_copies, "PATIENCE_S", 0.05)
    monkeypatch.setattr(model_copies, "sha256_of", lambda path, progress: may_end.wait() and file.sha256)
    copies = ModelCopies(tmp_path)
    with pytest.raises(Unavailable, match="is compared with its registered SHA-256, once on each host: 0 of"):
        copies.check([file])
    may_end.set()
    monkeypatch.setattr(model_copies, "PATIENCE_S", 60.0)
    copies.check([file])
