"""Renders a new model's chat template once in a process of its own, with limits, before anybody relies on it.

The sandbox (template_sandbox.py) counts what a template does; this is for what it might not count. What
renders here within the limits may be registered; what is killed may not.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from trivet.child_limits import limit_this_process
from trivet.errors import ModelFilesError, RequestError
from trivet.text.chat_template import ChatTemplate

CPU_S = 5.0
MEMORY_BYTES = 512 << 20
MAX_TEXT = 1 << 20  # characters; the trial's messages are short
TIMEOUT_S = 120.0  # of wall time, on a busy machine
_CHAT = (
    {"role": "user", "content": "Which metal is heaviest?"},
    {"role": "assistant", "content": "Osmium."},
    {"role": "user", "content": "And the lightest?"},
)


class Trial(msgspec.Struct, array_like=True, frozen=True):
    """What the process reads."""

    template: str
    bos_token: str | None
    eos_token: str | None


def try_template(template: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
    """A refusal in the template's own words is fine: it may not like these messages.

    Raises: ModelFilesError where it is no template, or needs more than a template may.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.msgpack.encode(Trial(template, bos_token, eos_token)),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFilesError(
            f"the chat template did not render within {error.timeout:.0f} s; do not use this model"
        ) from error
    if done.returncode < 0 or done.returncode > 1:
        raise ModelFilesError(
            f"the chat template needs more than {CPU_S:.0f} s of a processor or {MEMORY_BYTES >> 20} MiB for "
            "three short messages; do not use this model, or correct its template"
        )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()[-500:]
        raise ModelFilesError(f"the chat template cannot be used: {reason}")


def main() -> None:
    """Status 0: it renders; 1: it never will; anything else, a signal too: it was too much."""
    trial = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Trial)
    limit_this_process(CPU_S, MEMORY_BYTES)
    try:
        text = ChatTemplate(trial.template, trial.bos_token, trial.eos_token).render(_CHAT)
    except RequestError:
        return
    except ModelFilesError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RecursionError):
        sys.exit(2)
    if len(text) > MAX_TEXT:
        sys.exit(2)


if __name__ == "__main__":
    main()
