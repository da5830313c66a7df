"""What the site tells of its own settings."""

from __future__ import annotations

import msgspec


class SiteSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Logins in addresses, and what is in variables of backends, are left out of `value`."""

    name: str
    value: str = ""
    source: str  # "default", "file", or "given" by environment or command line


class SiteCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of `trivet doctor` on the server's host; `advice` is there where something is to be done."""

    check: str
    status: str  # "ok", "warn" or "fail"
    text: str
    advice: str = ""


class SitePackage(msgspec.Struct, frozen=True, kw_only=True):
    """What Trivet is made with."""

    name: str
    version: str
    licence: str = ""


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`fault` says what is wrong with the file as it is now: the next start would end with it."""

    file: str
    has_file: bool
    fault: str = ""
    has_tls: bool
    version: str
    python: str
    settings: tuple[SiteSetting, ...] = ()
    packages: tuple[SitePackage, ...] = ()
