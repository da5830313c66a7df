"""HTTP: the OpenAI-compatible API, the management API, health, metrics and the console."""

from contextlib import AbstractContextManager
from typing import Any

from trivet.config import Settings
from trivet.plugins import Command, hookimpl


@hookimpl
def trivet_commands() -> list[Command]:
    """`trivet generate`, which answers a file of requests as the API does."""
    from trivet_registry import commands as registry
    from trivet_web.batch.command import commands

    return [*commands(), *registry.commands()]


@hookimpl
def trivet_offline_accounts(settings: Settings) -> AbstractContextManager[tuple[Any, str]]:
    """For `trivet users`, `keys`, `audit` and `usage` without a server."""
    from trivet_web.accounts.offline import offline_accounts

    return offline_accounts(settings)
