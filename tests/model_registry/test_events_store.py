from __future__ import annotations

from trivet_registry.database import Database
from trivet_registry.events_store import list_events, record_event


def test_the_newest_events_come_oldest_first(db: Database) -> None:
    with db.session() as session:
        for number in range(5):
            record_event(session, "supervisor", str(number))
            session.flush()
        assert [e.reason for e in list_events(session, limit=3)] == ["2", "3", "4"]


def test_events_can_be_followed(db: Database) -> None:
    with db.session() as session:
        first = record_event(session, "supervisor", "first")
        session.flush()
        record_event(session, "deployment", "second", deployment="chat")
        assert [e.reason for e in list_events(session, after_id=first.id)] == ["second"]
        assert [e.reason for e in list_events(session, deployment="chat")] == ["second"]
