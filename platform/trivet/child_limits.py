"""Limits that a child process puts on itself before it does what a stranger's file or request asks for."""

from __future__ import annotations

import math
import resource
import signal


def limit_this_process(cpu_s: float, memory_bytes: int, stack_bytes: int | None = None) -> None:
    """Processor time by a timer whose signal ends the process; address space; stack; no core file.

    Args: memory_bytes: of address space beyond what the process has now.
    """
    with open("/proc/self/statm", encoding="ascii") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + memory_bytes,) * 2)
    if stack_bytes is not None:
        resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, stack_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = math.ceil(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
