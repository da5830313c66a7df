"""`python -m trivet_supervisor.attached FD MODULE [ARGUMENT...]`: run a module that ends with its parent.

A thread waits for the end of a pipe that only the parent holds open, so it notices SIGKILL too.
PR_SET_PDEATHSIG would not do: it fires when the parent's *thread* ends (prctl(2)).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

from trivet_supervisor.parent_pipe import watch_pipe

GRACE_S = 10.0  # from SIGTERM to SIGKILL


def main(arguments: list[str]) -> None:
    """Runs MODULE as `python -m MODULE` would."""
    fd, module, *rest = arguments
    watch_pipe(int(fd), _end)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
