"""TLS on both sides: the server's certificate and key, and whom a client trusts.

A server of this home is known by its own certificate, whoever signed it and for whatever name, so that
the commands of a home work with every certificate. Other servers are verified as browsers do it.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from trivet.config import Settings
from trivet.errors import ConfigError


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """None where the settings name no certificate.

    Raises: ConfigError where certificate and key cannot be read, or do not belong together.
    """
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        one, other = ("tls_key", "tls_cert") if settings.tls_cert is None else ("tls_cert", "tls_key")
        raise ConfigError(f"{one} is set and {other} is not; set both, or neither for plain HTTP")
    cert, key = Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser()
    _check_pem(cert, "tls_cert", "CERTIFICATE-----", "a certificate")
    _check_pem(key, "tls_key", "PRIVATE KEY-----", "a private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])

    def refuse() -> str:  # else OpenSSL asks the terminal
        raise ConfigError(f"tls_key {key} has a password, and nobody is there to type it; give one without")

    try:
        context.load_cert_chain(cert, key, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"tls_key {key} is not the key of the certificate in tls_cert {cert}; give the pair that "
                "was made together, the server's own certificate first where the file holds a chain"
            ) from error
        raise ConfigError(f"tls_cert {cert} and tls_key {key} cannot be used: {error}") from error
    return context


def _check_pem(file: Path, setting: str, mark: str, what: str) -> None:
    """Raises: ConfigError."""
    try:
        content = file.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"{setting} {file} cannot be read: {error.strerror}; give a PEM file that this account may read"
        ) from error
    if mark not in content:
        raise ConfigError(f"{setting} {file} holds no {mark.strip('-').lower()} in PEM form; give {what}")


def trust(ca_file: str | os.PathLike[str] | None, own_cert: str | None = None) -> ssl.SSLContext:
    """Of a client.

    Args:
        ca_file: certificates to trust instead of the system's.
        own_cert: the server's own certificate: that one alone is trusted, and its name does not count.

    Raises: ConfigError.
    """
    file = own_cert or ca_file
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:  # of a file; SSLError is one
        raise ConfigError(
            f"the certificates to trust cannot be read from {file} "
            f"({error.strerror or error}); give a PEM file of certificates"
        ) from error
    if own_cert is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
