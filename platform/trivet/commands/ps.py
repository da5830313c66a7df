"""`trivet ps`: deployments and their instances, and how far the list can be trusted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import (
    add_json_option,
    age_text,
    bytes_text,
    note,
    print_json,
    print_table,
)
from trivet.commands.staleness import why_stale
from trivet.messages import RESIDENT
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Deployment, Instance

REASON_WIDTH = 60  # at least, on a terminal; whole in a pipe, --json and `trivet events`
HOST = "host"  # uid of the device whose memory is the host's (contract.DeviceInfo)
ASLEEP = "asleep"
WAKES = "nobody used it for idle_timeout_s; the next request wakes it"
WITHOUT_PROCESS = ("pending", "placing", "failed", "stopped")
LIVE_HEADERS = ("MEMORY", "RUNNING", "WAITING", "AGE", "REASON")
HEADERS = ("NAME", "MODEL", "INSTANCE", "STATE", "BACKEND", "DEVICE", "PID", *LIVE_HEADERS)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="include what is stopped")
    add_json_option(parser)
    add_server_options(parser)


def _run(given: argparse.Namespace) -> int:
    with connect(given) as client:
        status = client.status()
        deployments = [d for d in client.deployments.list() if given.all or _lives(d)]
    if given.json:
        print_json(deployments)
    else:
        print_table(HEADERS, [row for d in deployments for row in _rows(d, given.all)], REASON_WIDTH)
        for deployment in deployments:
            _show_notices(deployment)
    if why := why_stale(status):
        note(why)
    return 0


def _lives(deployment: Deployment) -> bool:
    return deployment.desired == "running" or any(i.state != "stopped" for i in deployment.instances)


def _rows(deployment: Deployment, ended: bool) -> list[list[object]]:
    model = deployment.model if deployment.version is None else f"{deployment.model}:{deployment.version}"
    shown = [i for i in deployment.instances if ended or i.state != "stopped"]
    if not shown:
        state = _state_without_instances(deployment)
        age = age_text(deployment.created_at)
        reason = WAKES if state == ASLEEP else None
        cells = [None, state, deployment.backend, deployment.device, None, None, None, None, age, reason]
        return [[deployment.name, model, *cells]]
    return [[deployment.name, model, *_cells(instance)] for instance in shown]


def _state_without_instances(deployment: Deployment) -> str:
    """What is wanted is no state: nothing runs here."""
    if deployment.desired != "running":
        return deployment.desired
    if not deployment.replicas:
        return "0 replicas"
    return ASLEEP if deployment.is_asleep else "pending"


def _cells(instance: Instance) -> list[object]:
    state = instance.state
    has_process = state not in WITHOUT_PROCESS
    load = instance.load if has_process else None  # else the last word of a process that is gone
    if instance.progress is not None and state == "loading":
        state = f"{state} {instance.progress:.0%}"
    return [
        instance.id,
        state,
        instance.backend,
        ",".join(instance.device_uids),
        instance.pid if has_process else None,
        memory_text(instance) if has_process else None,
        None if load is None else load.num_running,
        None if load is None else load.num_waiting,
        age_text(instance.created_at),
        " ".join((instance.reason or "").split()),
    ]


def memory_text(instance: Instance) -> str | None:
    """What it holds on its device, and by how much that differs from its plan: "1.2 GiB +3%"."""
    planned = {part.name: part.size_bytes for part in instance.plan.parts} if instance.plan else {}
    held = dict(instance.memory or {})
    resident = held.pop(RESIDENT, None)
    if instance.device_uids == (HOST,) and resident is not None:  # the device is the process's own memory
        return _compared(resident, sum(planned.values()))
    told = {name: size for name, size in held.items() if name in planned}
    if told:
        return _compared(sum(told.values()), sum(planned[name] for name in told))
    return bytes_text(sum(planned.values())) if planned else None


def _compared(held: int, planned: int) -> str:
    return bytes_text(held) + (f" {held / planned - 1:+.0%}" if planned else "")


def _show_notices(deployment: Deployment) -> None:
    """Of what runs; a process that is gone warns of nothing."""
    for instance in deployment.instances:
        if instance.state not in WITHOUT_PROCESS:
            for notice in instance.notices:
                note(f"{deployment.name} {instance.id}: {notice}")


COMMANDS = (Command("ps", "list deployments and their instances", _add_arguments, _run),)
