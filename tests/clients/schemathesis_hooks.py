"""Half of the made-up requests name a model that there is: its engine has to answer them."""

from __future__ import annotations

import zlib
from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The null backend's: it answers what it is asked at once."""
    if isinstance(body, dict) and isinstance(body.get("model"), str) and zlib.crc32(repr(body).encode()) % 2:
        return {**body, "model": "null"}
    return body
