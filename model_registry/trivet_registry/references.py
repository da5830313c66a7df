"""What a name means: "model" (its newest version), "model:3" (that version), "model:prod" (by an alias)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet.errors import ModelNotFound, RequestError
from trivet_registry.tables import Alias, Model, Version

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A version, and the alias that led to it: who launches by an alias follows it."""

    version: Version
    alias: str | None = None


def check_name(name: str, what: str) -> str:
    """A name that is safe in a URL, in a file name and before a colon. Raises: RequestError."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{what} name {name!r} is not usable; use up to 128 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit",
            param="name",
        )
    return name


def choose(session: Session, reference: str) -> Chosen:
    """Raises: ModelNotFound listing what exists."""
    name, colon, tag = reference.partition(":")
    versions = select(Version).join(Version.model).where(Model.name == name)
    if not colon:
        newest = session.scalars(versions.order_by(Version.version.desc()).limit(1)).first()
        found = None if newest is None else Chosen(newest)
    elif tag.isascii() and tag.isdecimal() and len(tag) < 10:
        numbered = session.scalars(versions.where(Version.version == int(tag))).first()
        found = None if numbered is None else Chosen(numbered)
    else:
        alias = session.scalars(
            select(Alias).join(Alias.model).where(Model.name == name, Alias.name == tag)
        ).first()
        found = None if alias is None else Chosen(alias.version, alias.name)
    if found is None:
        raise ModelNotFound(f"model {reference!r} is not registered; {_existing(session)}", param="model")
    return found


def find_version(session: Session, reference: str) -> Version:
    """As `choose`, where it does not matter how it was named. Raises: ModelNotFound listing what exists."""
    return choose(session, reference).version


def find_model(session: Session, name: str) -> Model:
    """Raises: ModelNotFound listing what exists."""
    model = session.scalars(select(Model).where(Model.name == name)).first()
    if model is None:
        raise ModelNotFound(f"model {name!r} is not registered; {_existing(session)}", param="model")
    return model


def _existing(session: Session) -> str:
    models = session.scalars(select(Model).order_by(Model.name)).all()
    tags = {m.name: [*(str(v.version) for v in m.versions), *(a.name for a in m.aliases)] for m in models}
    names = ", ".join(f"{name}:{','.join(of_model)}" for name, of_model in tags.items())
    return f"registered: {names}" if names else "no model is registered: trivet models add PATH"
