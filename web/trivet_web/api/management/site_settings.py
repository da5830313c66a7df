"""GET /platform/v1/settings: the settings in effect and where each comes from, and what is installed.

Children of `trivet serve` get every setting by their environment, so where one comes from is seen by its
value: it is that of trivet.toml, or the default, or neither.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from importlib.metadata import requires as requirements_of
from typing import Literal

import msgspec
from flask import Blueprint, Response

import trivet
from trivet.config import Settings, load_settings
from trivet.errors import ConfigError
from trivet.hidden_logins import without_logins
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("site_settings", __name__, url_prefix="/platform/v1")
_NAME = re.compile(r"[\w.-]+")


class SettingObject(msgspec.Struct, frozen=True):
    """`value` is TOML or empty; logins in addresses, and what is in variables of backends, are left out."""

    name: str
    value: str
    source: Literal["default", "file", "given"]  # given: by environment or command line


class PackageObject(msgspec.Struct, frozen=True):
    """What Trivet is made with, as its own metadata has it."""

    name: str
    version: str
    licence: str


class SettingsObject(msgspec.Struct, frozen=True):
    """`fault` says what is wrong with trivet.toml as it is now: the next start would end with it."""

    file: str
    has_file: bool
    fault: str
    has_tls: bool
    version: str
    python: str
    settings: list[SettingObject]
    packages: list[PackageObject]


@blueprint.get("/settings")
@requires(Right.OPERATE)
@documented(SettingsObject)
def settings() -> Response:
    """Read only: who has the home's folder changes them."""
    used, fault = web_process().settings, ""
    try:
        in_file = load_settings({"home": used.home}, {})
    except ConfigError as error:
        in_file, fault = Settings(home=used.home), str(error)
    file = used.paths.config_file
    return json_response(
        SettingsObject(
            file=str(file),
            has_file=file.exists(),
            fault=fault,
            has_tls=used.tls_cert is not None,
            version=trivet.__version__,
            python=platform.python_version(),
            settings=[_setting(name, used, in_file) for name in Settings.__struct_fields__],
            packages=sorted(_packages(), key=lambda one: one.name.lower()),
        )
    )


def _setting(name: str, used: Settings, in_file: Settings) -> SettingObject:
    value = getattr(used, name)
    if value == getattr(Settings(), name):
        return SettingObject(name, _text(name, value), "default")
    is_of_file = name != "home" and value == getattr(in_file, name)  # the file is in the home
    return SettingObject(name, _text(name, value), "file" if is_of_file else "given")


def _text(name: str, value: object) -> str:
    if value is None or value == {}:
        return ""
    plain = msgspec.to_builtins(value)
    if name == "backend":
        plain = {each: {**one, "env": sorted(one["env"])} for each, one in plain.items()}
    text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    return without_logins(text)


def _packages() -> Iterator[PackageObject]:
    names = {found[0] for line in requirements_of("trivet") or () if (found := _NAME.match(line))}
    for name in names:
        try:
            known = metadata(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed
        yield PackageObject(name, known["Version"], _licence(known))


def _licence(known: PackageMetadata) -> str:
    """By the newest of the three ways in which packages tell it."""
    if "License-Expression" in known:
        return str(known["License-Expression"])
    classes = [
        one.rpartition("::")[2].strip() for one in known.get_all("Classifier") or () if "License ::" in one
    ]
    return ", ".join(classes) or (str(known["License"]) if "License" in known else "").partition("\n")[0][:60]
