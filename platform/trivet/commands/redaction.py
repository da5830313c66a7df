"""Takes secrets out of text that leaves this host.

Known ones by their value: the home's token, passwords in addresses, and what variables hold whose names say
so. Unknown ones by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from trivet.config import Settings

REMOVED = "[removed]"
MIN_LENGTH = 6  # a shorter value would be found everywhere
_NAME = re.compile(r"token|secret|passw|passphrase|credential|api_?key|private|auth", re.IGNORECASE)
_FORMS = (
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{6,}"),
    re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"\b(?:sk|hf|ghp|gho|glpat|xox[bp]|AKIA)[-_]?[A-Za-z0-9_-]{12,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(
        r"(?i)(?<![\w-])[\w-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|credential)s?"
        r"[\"']?\s*[=:]\s*[\"']?(?P<value>[^\s\"',;}&]{6,})"
    ),
)


class Redactor:
    """`clean` any text with it; the order of calls does not matter."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {
            form for secret in secrets if len(secret) >= MIN_LENGTH for form in (secret, _in_json(secret))
        }
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def clean(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for form in _FORMS:
            text = form.sub(_without_value, text)
        return text


def secrets_of(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """What must not leave this host, as far as its values are known."""
    found = [value for name, value in environ.items() if _NAME.search(name)]
    for backend in settings.backend.values():
        found += [value for name, value in backend.env.items() if _NAME.search(name)]
    for url in (settings.resolved_database_url, settings.source_proxy):
        if password := urlsplit(url).password:
            found += [password, unquote(password)]
    try:
        found.append(settings.paths.token_file.read_text().strip())
    except OSError:
        return found  # there is none, or it cannot be read: then nothing of it is shown either
    return found


def _in_json(secret: str) -> str:
    """As it stands in a string of JSON, where quotes and backslashes are written otherwise."""
    return msgspec.json.encode(secret).decode()[1:-1]


def _without_value(match: re.Match[str]) -> str:
    """A number is a count of tokens, and no secret: `max_tokens=1000000`."""
    value = match.groupdict().get("value")
    if value is None:
        return REMOVED
    if re.fullmatch(r"[\d.]+", value) or value == REMOVED:
        return match[0]
    return (
        match[0][: match.start("value") - match.start()]
        + REMOVED
        + match[0][match.end("value") - match.start() :]
    )
