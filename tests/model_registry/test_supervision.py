from __future__ import annotations

import threading
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from trivet.errors import Conflict, Unavailable
from trivet_registry.database import Database, open_database
from trivet_registry.supervision import SupervisionLost, claim_supervision


@pytest.mark.usefixtures("sqlite_only")
def test_a_second_supervisor_is_refused_and_the_first_named(db: Database) -> None:
    with (
        claim_supervision(db, "supervisor 17"),
        pytest.raises(Conflict, match="supervisor 17"),
        claim_supervision(db, "supervisor 18"),
    ):
        pass


@pytest.mark.usefixtures("sqlite_only")
def test_the_claim_ends_with_its_holder(db: Database) -> None:
    with claim_supervision(db, "a supervisor with a long name"):
        pass
    with (
        claim_supervision(db, "short"),
        pytest.raises(Conflict, match=r"by short;"),
        claim_supervision(db, "x"),
    ):
        pass


def test_a_holder_that_is_about_to_leave_is_waited_for(db: Database) -> None:
    claimed = threading.Event()

    def wait() -> None:
        with claim_supervision(db, "the next", patience_s=60):
            claimed.set()

    waiter = threading.Thread(target=wait)
    with claim_supervision(db, "the first"):
        waiter.start()
        assert not claimed.wait(0.3)
    assert claimed.wait(60)
    waiter.join(60)


@pytest.mark.usefixtures("sqlite_only")
def test_a_claim_whose_file_was_deleted_is_taken_anew(db: Database) -> None:
    file = Path(f"{db.engine.url.database}.supervisor")
    with claim_supervision(db, "the first") as claim:
        claim.check()
        file.unlink()
        claim.check()
        with pytest.raises(Conflict, match="by the first"), claim_supervision(db, "the second"):
            pass


@pytest.mark.usefixtures("sqlite_only")
def test_who_lost_its_claim_to_another_is_told(db: Database) -> None:
    file = Path(f"{db.engine.url.database}.supervisor")
    with claim_supervision(db, "the first") as claim:
        file.unlink()
        with claim_supervision(db, "the second") as others:
            others.check()
            with pytest.raises(SupervisionLost, match="the second"):
                claim.check()


@pytest.mark.parametrize(
    "error",
    [OSError("no folder"), OperationalError("SELECT", None, Exception("no folder"))],
)
def test_a_claim_that_cannot_be_taken_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(self: object) -> bool:
        raise error

    database = open_database(f"sqlite:///{tmp_path / 'registry.db'}")
    monkeypatch.setattr("trivet_registry.supervision._LockFile.take", fail)
    with (
        pytest.raises(
            Unavailable, match=r"claim on this registry cannot be taken: no folder; see `trivet doc"
        ),
        claim_supervision(database, "a supervisor"),
    ):
        raise AssertionError("it was not taken")
    database.close()
