"""Models that were made by `create` and `copy`: a deployment under another name, with defaults of its own.

Nothing is loaded twice: a request that names one goes to the deployment, with the system message and options
that were given. They are files of the home, one a model, so that every web process knows them at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from trivet.errors import RequestError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}(:[A-Za-z0-9][A-Za-z0-9._-]{0,79})?")
_SUFFIX = ".json"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    base: str  # the deployment that answers
    adapter: str = ""  # of it
    created_at: datetime
    system: str | None = None
    options: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []  # before those of each chat


class Variants:
    """Those of one home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> Variant | None:
        """None where it was not created here."""
        try:
            data = self._file(name).read_bytes()
        except (FileNotFoundError, RequestError):
            return None
        return msgspec.json.decode(data, type=Variant)

    def put(self, name: str, variant: Variant) -> None:
        """Raises: RequestError for a name that cannot be used."""
        file = self._file(name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{secrets.token_hex(8)}"
        with open(draft, "xb", opener=_private) as out:
            out.write(msgspec.json.encode(variant))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)

    def remove(self, name: str) -> bool:
        """Whether there was one."""
        with contextlib.suppress(FileNotFoundError, RequestError):
            self._file(name).unlink()
            return True
        return False

    def all(self) -> Iterator[tuple[str, Variant]]:
        """By name."""
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            name = file.name.removesuffix(_SUFFIX)
            if (variant := self.get(name)) is not None:  # it may have gone meanwhile
                yield name, variant

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"model name {name[:200]!r} is not usable; use letters, digits, '.', '_' and '-', and at "
                "most one tag after ':'",
                param="model",
            )
        return self._folder / f"{name}{_SUFFIX}"


def new_variant(base: str, **fields: Any) -> Variant:
    """Made now."""
    return Variant(base=base, created_at=datetime.now(UTC), **fields)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
