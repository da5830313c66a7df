"""The host CPU as a device: the torch-free half of its backend, and a torch runner."""

from trivet.contract import Backend
from trivet.plugins import Command, hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The CPU backend; a runner and torch are imported by `create_runner` only."""
    from trivet_cpu.backend import CpuBackend

    return CpuBackend()


@hookimpl
def trivet_commands() -> list[Command]:
    """`trivet kernels`."""
    from trivet_cpu.commands import commands

    return commands()
