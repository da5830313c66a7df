"""Runs a child process to its end, or to that of whoever waits for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from trivet.confining import confine, on_cpus
from trivet.launching import Confinement

PIECE_S = 0.5
NOT_CONFINED = Confinement()


def run_child(
    command: Sequence[str],
    timeout_s: float,
    check: Callable[[], None],
    env: Mapping[str, str] | None = None,
    confinement: Confinement = NOT_CONFINED,
) -> tuple[int, str]:
    """Exit code and what it said on stderr; what it prints otherwise is dropped.

    Args: check: called twice a second; where it raises, the child is killed.

    Raises: TimeoutError; Unavailable where it cannot be confined.
    """
    end_s = time.monotonic() + timeout_s
    with on_cpus(confinement.cpus):
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",  # a driver's tool may speak as its host does
            env=env,
        )
    with started as child:
        try:
            confine(child, confinement.memory_limit_bytes)
            while True:
                try:
                    _, said = child.communicate(timeout=PIECE_S)
                    return child.returncode, said
                except subprocess.TimeoutExpired:
                    check()
                    if time.monotonic() > end_s:
                        raise TimeoutError from None
        except BaseException:
            child.kill()
            raise
