"""Ed25519 keys of bundles: the site's own, and those that it trusts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from trivet.errors import ConfigError, PermissionDenied

PRIVATE, PUBLIC, TRUSTED = "bundle.key", "bundle.pub", "trusted"


def own_key(folder: Path) -> Ed25519PrivateKey:
    """The site's key, made at the first use: `bundle.key` (0600), and `bundle.pub` to give to other sites.

    Raises: ConfigError where the file holds something else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / PRIVATE
    if not file.exists():
        _make_key(file)
    key = _private(file)
    _write_public(folder / PUBLIC, public_pem(key.public_key()))
    return key


def _write_public(file: Path, pem: bytes) -> None:
    """Whole at any moment: imports read it meanwhile."""
    if file.is_file() and file.read_bytes() == pem:
        return
    temporary = file.with_name(f".{secrets.token_hex(8)}")
    temporary.write_bytes(pem)
    temporary.replace(file)


def _make_key(file: Path) -> None:
    """Whole or not at all; where another makes one at the same time, one of the two stays."""
    temporary = file.with_name(f".{secrets.token_hex(8)}")
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(pem)
            made.flush()
            os.fsync(made.fileno())
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def public_pem(key: Ed25519PublicKey) -> bytes:
    """As files of public keys have it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of the 32 bytes."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def read_public(pem: bytes, where: str) -> Ed25519PublicKey:
    """Raises: ConfigError naming where it came from."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where} is no public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{where} is a key of another kind; bundles are signed with Ed25519")
    return key


def trusted_keys(folder: Path, given: str | None) -> list[Ed25519PublicKey]:
    """The given one (PEM), and the site's: its own, and those in `trusted/`. Raises: ConfigError."""
    files = sorted((folder / TRUSTED).glob("*.pub"))
    if (folder / PUBLIC).is_file():
        files.append(folder / PUBLIC)
    keys = [read_public(file.read_bytes(), str(file)) for file in files]
    return keys if given is None else [read_public(given.encode(), "the given key"), *keys]


def check_signature(data: bytes, signature: bytes, keys: list[Ed25519PublicKey], folder: Path) -> str:
    """The fingerprint of the key that signed. Raises: PermissionDenied where none of them did."""
    for key in keys:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            continue
        return fingerprint(key)
    known = ", ".join(fingerprint(key)[:16] for key in keys) or "none"
    raise PermissionDenied(
        f"the bundle's manifest is signed by none of the trusted keys ({known}), or was changed since; give "
        f"the signer's bundle.pub with --key, or put it into {folder / TRUSTED}"
    )


def _private(file: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is no private key in PEM: {error}; put it back from a backup") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} is a key of another kind; bundles are signed with Ed25519")
    return key
