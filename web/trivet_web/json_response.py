"""A JSON answer from a msgspec struct or plain values."""

from __future__ import annotations

import msgspec
from flask import Response

NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


def json_response(value: object, status: int = 200) -> Response:
    """Times become RFC 3339 with zone; nothing is escaped that JSON does not ask for."""
    return Response(_encode(value), status, mimetype="application/json")
