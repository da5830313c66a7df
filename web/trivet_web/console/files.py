"""Serves the console's own modules, styles and pictures, and nothing else of its folder.

An address carries a mark made of all of the files. Imports between modules are relative, so all of a page
come with the same mark: a browser keeps them for good, and a page opened before an upgrade never mixes.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from flask import Blueprint, Response, send_from_directory

from trivet.errors import NotFound
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented

blueprint = Blueprint("console_files", __name__)
FOLDER = Path(__file__).parent
_IMPORT = re.compile(r"""^(?:import|export)\b[^"';]*["'](\.[^"']+)["']""", re.MULTILINE)
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def files_of_console() -> list[str]:
    """Names under the folder, of what browsers may load."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in KINDS)
    return sorted(path.relative_to(FOLDER).as_posix() for path in found)


@cache
def mark() -> str:
    """Of these files as they are when it is first asked for."""
    digest = hashlib.sha256()
    for name in files_of_console():
        digest.update(name.encode() + b"\0" + (FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


@cache
def imports_of(name: str) -> tuple[str, ...]:
    """All modules that one brings along, so that a page can ask for them at once."""
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        for imported in _IMPORT.findall((FOLDER / module).read_text()):
            path = (
                (FOLDER / module).parent.joinpath(imported).resolve().relative_to(FOLDER.resolve()).as_posix()
            )
            if path not in found:
                found[path] = None
                waiting.append(path)
    return tuple(sorted(found))


def file_url(name: str) -> str:
    """Of a file of the console, for a page."""
    return f"/console/files/{mark()}/{name}"


def has_file(name: str) -> bool:
    """Whether a page has it."""
    return (FOLDER / name).is_file()


@blueprint.get("/console/files/<version>/<path:name>")
@requires(Right.NOTHING)
@documented(media_type="text/javascript", other_media_type="text/css")
def serve(version: str, name: str) -> Response:
    """A module, a style sheet or a picture. Raises: NotFound."""
    kind = KINDS.get(Path(name).suffix)
    if kind is None:
        raise NotFound(f"the console has no file {name[:200]!r}", param="name")
    response = send_from_directory(FOLDER, name, mimetype=kind)
    is_current = version == mark()
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_current else "no-store"
    return response
