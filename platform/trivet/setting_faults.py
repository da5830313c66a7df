"""What is wrong with settings, in sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from trivet.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
_TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "dict[str, str]": "a table of texts",
}


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises: ConfigError with the nearest known key."""
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")


def refuse_misspelt(environ: Iterable[str], known: Iterable[str]) -> None:
    """A variable that is nearly one of `known`; others of our prefix are not ours to judge.

    Raises: ConfigError with the nearest.
    """
    known = list(known)
    for variable in environ:
        if variable.startswith("TRIVET_") and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1, cutoff=0.9)
            if near:
                raise ConfigError(f"the variable {variable} is no setting; did you mean {near[0]}?")


def converted(given: Mapping[str, object], kind: type[T], where: str) -> T:
    """As `kind`, with text read as numbers where it wants them. Raises: ConfigError naming the key."""
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {type_sentence(error, given, kind)}") from error


def type_sentence(
    error: msgspec.ValidationError, given: Mapping[str, object], kind: type[msgspec.Struct]
) -> str:
    """What is wrong, in our words; the library's where a part of a value is at fault."""
    found = re.search(r"at `\$\.(\w+)`$", str(error))
    if found is None or found[1] not in given:
        return str(error)
    type_name, _, others = str(kind.__annotations__[found[1]]).partition(" | ")
    wanted = _TYPE_WORDS.get(type_name, type_name) + (", or none" if others else "")
    return f"{found[1]} is {given[found[1]]!r}; it must be {wanted}"
