"""HTTP: the OpenAI-compatible API, the management API, health, metrics and the console."""

from trivet.plugins import Command, hookimpl


@hookimpl
def trivet_commands() -> list[Command]:
    """`trivet generate`, which answers a file of requests as the API does."""
    from trivet_registry import commands as registry
    from trivet_web.batch.command import commands

    return [*commands(), *registry.commands()]
