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
    """Those that work on the home itself, most without a server."""
    from trivet_supervisor import backup_commands, commands
    from trivet_supervisor.service import commands as service

    return [*commands.commands(), *backup_commands.commands(), *service.commands()]
