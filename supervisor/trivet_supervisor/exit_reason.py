"""Why an engine process ended, in a sentence."""

from __future__ import annotations

import signal

from trivet.launching import UNSEEN_EXIT
from trivet.messages import Beat, Phase

CANNOT_START = 3  # trivet.engine.process: starting again gives the same
UNSEEN = "its process ended while no supervisor was there to see why"
REBOOTED = "its process ended because the host was started anew"


def stopped_reason(code: int | None) -> str:
    """How a process went that was told to go."""
    if code is None or code == UNSEEN_EXIT:
        return "stopped"
    return f"stopped; killed by {_signal_name(-code)}" if code < 0 else f"stopped with exit code {code}"


def own_words(beat: Beat | None) -> str:
    """What an engine told of its end before it."""
    return beat.reason if beat is not None and beat.phase in (Phase.FAILED, Phase.STOPPING) else ""


def exit_reason(code: int, said: str) -> str:
    """How the process ended, and what was said of it."""
    if code < 0:
        how = f"killed by {_signal_name(-code)}"
        if -code == signal.SIGKILL:
            how += " (the kernel does that too when memory runs out)"
    elif code == UNSEEN_EXIT:
        how = "its process ended; no exit code, because another supervisor had started it"
    elif code == 0:
        how = "ended by itself with exit code 0"
    else:
        how = f"exit code {code}"
    return f"{how}: {said}" if said else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
