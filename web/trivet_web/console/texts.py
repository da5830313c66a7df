"""The console's words in each language: the JSON files beside pages, shell and base, put together.

Keys are whole (`overview.title`), so that a search finds the word and its place; tests/web/console checks
that both languages have the same keys and the same placeholders. A placeholder is a name in braces.

What the server says of states and failures is English. sentences.LANGUAGE.json has those of its sentences
that pages show often; base/said.js puts the reader's in their place, and marks all others as English.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flask import request

LANGUAGES: Mapping[str, str] = {"en": "English", "zh-CN": "简体中文"}
DEFAULT = "en"
COOKIE = "trivet_language"
FOLDER = Path(__file__).parent
_PLACE = re.compile(r"\{(\w+)\}")
_SHARED = ("shell", "base")


@cache
def texts_of(language: str) -> Mapping[str, str]:
    """Of all pages."""
    merged: dict[str, str] = {}
    for file in sorted(FOLDER.rglob(f"{language}.json")):
        merged |= json.loads(file.read_text())
    return merged


def texts_of_page(language: str, page: str) -> dict[str, str]:
    """What the modules of one page need: its own and those that all share."""
    wanted = (*_SHARED, page)
    return {key: text for key, text in texts_of(language).items() if key.partition(".")[0] in wanted}


@cache
def sentences_of(language: str) -> Mapping[str, str]:
    """The server's English sentences and the reader's; of English readers none."""
    file = FOLDER / f"sentences.{language}.json"
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return found


def fill(text: str, values: Mapping[str, object]) -> str:
    """Put values in the places of a text; a place without a value stays, and is seen."""
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), text)


def language_of_request() -> str:
    """As the address asks, as was chosen before, or as the browser likes it."""
    for chosen in (request.args.get("language"), request.cookies.get(COOKIE)):
        if chosen is not None and chosen in LANGUAGES:
            return chosen
    for wanted, _ in request.accept_languages:
        if wanted.lower().startswith("zh"):
            return "zh-CN"
        if wanted.lower().startswith("en"):
            return "en"
    return DEFAULT
