"""Reads the launch order of an engine process, and refuses that of another version."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import msgspec

from trivet import __version__
from trivet.errors import ConfigError
from trivet.messages import LaunchOrder


class _Versioned(msgspec.Struct):
    """What of an order every version can read."""

    version: str = ""


def read_order(file: Path) -> LaunchOrder:
    """Raises: ConfigError for one that another version wrote, if it cannot be read; DecodeError, OSError."""
    content = file.read_bytes()
    try:
        return msgspec.json.decode(content, type=LaunchOrder)
    except msgspec.ValidationError:
        check_version(msgspec.json.decode(content, type=_Versioned).version)
        raise


def check_version(version: str) -> None:
    """Raises: ConfigError where the supervisor is of another version: its plan would not be this engine's."""
    if version not in ("", __version__):
        raise ConfigError(
            f"this engine is Trivet {__version__} ({sys.executable} on {socket.gethostname()}) and its "
            f"supervisor is Trivet {version}; install {version} there, and start it again"
        )
