"""Makes what runs match what shall run: starts, watches, adopts and ends engine processes."""

from trivet.config import Settings
from trivet.launching import Launcher
from trivet.plugins import Command, hookimpl


@hookimpl
def trivet_launcher(settings: Settings) -> Launcher:
    """`local`: engines are processes of this host."""
    from trivet_supervisor.launchers.local import LocalLauncher

    return LocalLauncher(settings.paths.run)


@hookimpl
def trivet_commands() -> list[Command]:
    """`trivet serve`, `trivet demo`, and `trivet stop-all`, which works without a server."""
    from trivet_supervisor.commands import commands

    return commands()
