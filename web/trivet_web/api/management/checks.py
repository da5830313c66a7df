"""GET /platform/v1/checks: what `trivet doctor` finds out about this host and home.

In a process of its own: its checks probe devices, load plugins and may hang in a driver, and none of that is
for a web process. One at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal

import msgspec
from flask import Blueprint, Response

from trivet.errors import Overloaded, Unavailable
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("checks", __name__, url_prefix="/platform/v1")
LIMIT_S = 90.0  # beyond the doctor's own limits for probes
# With -P: a file of the folder in which the server was started is no module.
_DOCTOR = "from trivet.cli import main; raise SystemExit(main(['doctor', '--json']))"
COMMAND = (sys.executable, "-P", "-c", _DOCTOR)


class CheckObject(msgspec.Struct, frozen=True):
    """One finding; `advice` is there where something is to be done."""

    check: str
    status: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


@blueprint.get("/checks")
@requires(Right.OPERATE)
@documented(Listing[CheckObject])
def checks() -> Response:
    """In the order in which one repairs them; it takes seconds. Raises: Overloaded, Unavailable."""
    is_running = web_process().is_checking
    if not is_running.acquire(blocking=False):
        raise Overloaded("the checks are running already; look again in a few seconds", retry_after_s=5)
    try:
        return json_response(Listing(examine()))
    finally:
        is_running.release()


def examine(command: tuple[str, ...] = COMMAND, limit_s: float = LIMIT_S) -> list[CheckObject]:
    """The command's findings; its settings are this process's. Raises: Unavailable."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
        return msgspec.convert(json.loads(done.stdout), list[CheckObject])
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"trivet doctor was not done within {limit_s:.0f} s; run it in a terminal"
        ) from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise Unavailable(f"trivet doctor gave no findings ({error}); run it in a terminal") from error
