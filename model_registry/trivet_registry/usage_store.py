"""Usage by key, user, model and day: added up in the database, so that any number of processes may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from trivet_registry.account_tables import Usage

NOBODY = 0


@dataclass(frozen=True, slots=True)
class UsageKey:
    """Whose tokens they are; `NOBODY` for no key and no user."""

    day: date
    key_id: int
    user_id: int
    model: str


@dataclass(slots=True)
class Tokens:
    """Sums of requests."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, other: Tokens) -> None:
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion


def add_usage(session: Session, sums: Mapping[UsageKey, Tokens]) -> None:
    """In one order, so that processes which add at the same time do not wait for each other in a ring."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    ordered = sorted(sums.items(), key=lambda item: (item[0].day, item[0].key_id, item[0].model))
    for key, tokens in ordered:
        new = insert(Usage).values(
            day=key.day,
            key_id=key.key_id,
            user_id=key.user_id,
            model=key.model[:128],
            requests=tokens.requests,
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
            completion_tokens=tokens.completion,
        )
        columns = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
        session.execute(
            new.on_conflict_do_update(
                index_elements=["day", "key_id", "user_id", "model"],
                set_={name: getattr(Usage, name) + getattr(new.excluded, name) for name in columns},
            )
        )


def list_usage(
    session: Session, first: date, last: date, user_id: int | None = None, key_id: int | None = None
) -> Sequence[Usage]:
    """Rows of these days, both included, the oldest first."""
    query = select(Usage).where(Usage.day >= first, Usage.day <= last)
    if user_id is not None:
        query = query.where(Usage.user_id == user_id)
    if key_id is not None:
        query = query.where(Usage.key_id == key_id)
    return session.scalars(query.order_by(Usage.day, Usage.key_id, Usage.user_id, Usage.model)).all()
