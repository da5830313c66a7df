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


@schemathesis.check
def no_fault_of_the_server(ctx: object, response: schemathesis.Response, case: object) -> None:
    """No 5xx but a 503 that says why: whoever may scale a model to nothing then finds that nothing serves."""
    if response.status_code >= 500:
        says_why = response.status_code == 503 and response.json().get("error")
        assert says_why, f"{response.status_code}: {response.text[:500]}"
