"""Modelfiles: what a created model is made of, and what of it is carried out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trivet.errors import RequestError, UnsupportedParameter

_INSTRUCTION = re.compile(r"[ \t]*([A-Za-z]+)[ \t]+(?=\S)")
_ROLES = ("system", "user", "assistant")
_REFUSED = {
    "TEMPLATE": "it is written for Go; the model's own chat template is used: leave it out",
}
_LISTS = ("stop",)


@dataclass(slots=True)
class Modelfile:
    """What is carried out of one."""

    base: str | None = None
    adapter: str | None = None
    system: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)


def parse_modelfile(text: str) -> Modelfile:
    """Raises: RequestError naming the line; UnsupportedParameter for what is not carried out."""
    made = Modelfile()
    for number, name, value in _instructions(text):
        if name in _REFUSED:
            raise UnsupportedParameter(
                f"line {number} of the Modelfile is {name}: {_REFUSED[name]}", param="modelfile"
            )
        if name == "FROM":
            made.base = value
        elif name == "ADAPTER":
            made.adapter = value
        elif name == "SYSTEM":
            made.system = value
        elif name == "PARAMETER":
            _add_parameter(made, number, value)
        elif name == "MESSAGE":
            _add_message(made, number, value)
        elif name not in ("LICENSE", "REQUIRES"):
            raise RequestError(
                f"line {number} of the Modelfile begins with {name[:40]!r}; it must be FROM, ADAPTER, "
                "PARAMETER, SYSTEM or MESSAGE",
                param="modelfile",
            )
    return made


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and value of each; a value in triple quotes goes over lines."""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            raise RequestError(
                f"line {number} of the Modelfile is {line[:80]!r}; it must be an instruction and its value",
                param="modelfile",
            )
        value = line[found.end() :]
        head, quotes, rest = value.partition('"""')
        while quotes and '"""' not in rest:
            _, more = next(lines, (number, None))
            if more is None:
                raise RequestError(
                    f'the """ of line {number} of the Modelfile has no end; close it', param="modelfile"
                )
            rest += f"\n{more}"
        text_of_it = head + rest.partition('"""')[0] if quotes else value
        yield number, found[1].upper(), text_of_it if quotes else _unquoted(text_of_it)


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _add_parameter(made: Modelfile, number: int, value: str) -> None:
    name, _, text = value.partition(" ")
    if not text.strip():
        raise RequestError(
            f"line {number} of the Modelfile is PARAMETER {value[:80]}; it must have a name and a value",
            param="modelfile",
        )
    given = _value_of(_unquoted(text))
    if name in _LISTS:
        made.options.setdefault(name, []).append(str(given))
    else:
        made.options[name] = given


def _value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _add_message(made: Modelfile, number: int, value: str) -> None:
    role, _, text = value.partition(" ")
    if role not in _ROLES:
        raise RequestError(
            f"line {number} of the Modelfile is a MESSAGE of {role[:40]!r}; it must be of "
            f"{', '.join(_ROLES)}",
            param="modelfile",
        )
    made.messages.append({"role": role, "content": _unquoted(text)})
