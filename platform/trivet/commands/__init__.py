"""The core's own commands, one module a family; plugins add theirs through `trivet_commands`."""

from __future__ import annotations

from trivet.commands import (
    accounts,
    bench,
    chat,
    devices,
    diagnose,
    doctor,
    launch,
    logs,
    models,
    offline,
    plan,
    ps,
    selftest,
    site_config,
    stop,
    update,
)
from trivet.plugins import Command

MODULES = (
    accounts,
    bench,
    chat,
    devices,
    diagnose,
    doctor,
    launch,
    logs,
    models,
    offline,
    plan,
    ps,
    selftest,
    site_config,
    stop,
    update,
)


def core_commands() -> list[Command]:
    """Every command that the core offers, without importing what they need to run."""
    return [command for module in MODULES for command in module.COMMANDS]
