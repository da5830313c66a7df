"""`trivet service`: a site that systemd starts. Heavy imports happen when one runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.commands.output import note
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet_supervisor.service.unit import Service

SYSTEM_HOME = "/var/lib/trivet"


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [Command("service", "run `trivet serve` as a service of systemd", _add_arguments, _run)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print the unit that would be installed")
    install = actions.add_parser("install", help="write the unit, and have systemd start it at boot")
    for action in (show, install):
        _add_name(action)
        action.add_argument("--home", help=f"of the site (default: TRIVET_HOME, or {SYSTEM_HOME})")
        action.add_argument("--account", default="trivet", help="who runs it (default: trivet)")
        action.add_argument(
            "--memory-max", metavar="SIZE", help="limit of all its processes together, such as 200G or 80%%"
        )
    install.add_argument("--now", action="store_true", help="start it as well")
    _add_name(actions.add_parser("uninstall", help="stop it and remove the unit; the home stays"))


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="trivet", help="of the service (default: trivet)")
    parser.add_argument("--user", action="store_true", help="a service of who runs this, not of the system")


def _run(given: argparse.Namespace) -> int:
    from trivet_supervisor.service.installing import Units, check_unit, install, uninstall
    from trivet_supervisor.service.unit import unit_text

    units = Units.of_user() if given.user else Units.of_system()
    if given.action == "uninstall":
        print(f"removed {uninstall(given.name, units)}")
        return 0
    service = _service(given)
    if given.action == "show":
        check_unit(service)
        print(unit_text(service), end="")
        return 0
    install(service, units)
    print(f"wrote {units.file(service.name)}, which serves {service.home}")
    systemctl = " ".join(units.systemctl)
    if not units.is_running:
        note("systemd does not run here; where it does, it finds the unit at the next boot")
    elif given.now:
        units.tell("restart", service.name)
        print(f"{service.name} is up; its log: journalctl -u {service.name}")
    else:
        print(f"start it now: {systemctl} start {service.name}")
    if given.user:
        print("it runs while you are logged in; without that too: loginctl enable-linger")
    return 0


def _service(given: argparse.Namespace) -> Service:
    import grp

    from trivet.config import home_of_environment, load_settings
    from trivet_supervisor.direct_stop import KILL_MARGIN_S
    from trivet_supervisor.parent import WEB_END_TIMEOUT_S
    from trivet_supervisor.service.installing import DEVICE_GROUPS
    from trivet_supervisor.service.unit import Service

    default = "~/.trivet" if given.user else SYSTEM_HOME
    home = given.home or home_of_environment().get("TRIVET_HOME") or default
    settings = load_settings({"home": home})
    known = {group.gr_name for group in grp.getgrall()}
    return Service(
        name=given.name,
        home=settings.paths.home,
        command=Path(sys.executable).with_name("trivet"),
        # As `Parent` ends: the drain, engines that do not end, and both children one after the other.
        stop_timeout_s=settings.drain_timeout_s + 2 * (KILL_MARGIN_S + WEB_END_TIMEOUT_S) + 15,
        account=None if given.user else given.account,
        groups=() if given.user else tuple(name for name in DEVICE_GROUPS if name in known),
        memory_max=given.memory_max,
    )
