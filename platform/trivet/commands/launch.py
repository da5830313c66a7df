"""`trivet launch` and `trivet scale`: ask for instances and wait until they are ready."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from trivet.commands.connecting import (
    add_server_options,
    add_settings_option,
    connect,
    given_settings,
    is_source,
    model_argument,
    with_path_hint,
)
from trivet.commands.model_files import add_source_key, followed, source_key
from trivet.commands.output import add_json_option, note, print_json
from trivet.commands.staleness import StalenessWatch
from trivet.counted import counted
from trivet.errors import Conflict, ModelNotFound, TrivetError, Unavailable
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client, Deployment, Instance

POLL_INTERVAL_S = 0.3
START_PATIENCE_S = 3.0  # a launch often follows `trivet serve &` at once
NUM_LOG_LINES = 20
CARRIAGE_RETURN = "\r"
STOPS = "`trivet stop {name}` takes it away"
GOES_ON = "goes on starting; `trivet ps` shows it, `trivet stop {name}` ends it"
FAILED_STATES = ("failed", "lost")


def _add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name, name:version, name:alias (which it follows), a folder, a GGUF file, or what "
        "`trivet models pull` takes, such as hf:org/name",
    )
    parser.add_argument("--name", help="name of the deployment (default: the model's)")
    parser.add_argument(
        "--backend",
        default="auto",
        help="cpu, cuda, ascend, auto (default), or several by preference: ascend,cuda,cpu",
    )
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="number of instances (default 1)"
    )
    parser.add_argument(
        "--priority",
        type=int,
        default=0,
        metavar="P",
        help="where room is scarce the lower is placed first (0)",
    )
    parser.add_argument("--fallback", metavar="NAME", help="deployment that answers when this one is full")
    add_source_key(parser)
    add_settings_option(parser)
    add_waiting_options(parser)


def _add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the deployment, see `trivet ps`")
    parser.add_argument("replicas", type=int, metavar="N", help="number of instances")
    add_waiting_options(parser)


def add_waiting_options(parser: argparse.ArgumentParser) -> None:
    """`--no-wait` or `--timeout`, `--json`, and the server's."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--no-wait", action="store_true", help="return at once instead of when all are ready")
    group.add_argument(
        "--timeout", type=float, metavar="S", help="wait so long; the deployment stays (default: no limit)"
    )
    add_json_option(parser)
    add_server_options(parser)


def _launch(given: argparse.Namespace) -> int:
    settings = given_settings(given)
    with connect(given, patience_s=START_PATIENCE_S) as client:
        model = _pulled(client, given) if is_source(given.model) else given.model
        try:
            deployment = client.deployments.create(
                model_argument(model),
                name=given.name,
                backend=given.backend,
                device=given.device,
                replicas=given.replicas,
                settings=settings,
                priority=given.priority,
                fallback=given.fallback,
            )
        except ModelNotFound as error:
            raise _with_deployment_hint(client, with_path_hint(error, given.model), given.model) from None
        return finish(client, deployment, given, instances_of(deployment))


def _with_deployment_hint(client: Client, error: ModelNotFound, name: str) -> ModelNotFound:
    """Who starts again what was stopped knows it by the deployment's name."""
    for each in client.deployments.list():
        if each.name == name:
            again = f"trivet launch {each.model} --name {name}"
            return ModelNotFound(
                f"deployment {name!r} runs a model of another name: `{again}`", param="model"
            )
    return error


def _pulled(client: Client, given: argparse.Namespace) -> str:
    """NAME:VERSION of what a hub or another Trivet has, once it is here. Raises: Unavailable."""
    pull = followed(client, client.pulls.begin(given.model, key=source_key(given)))
    if pull.state != "done" or pull.version is None:
        raise Unavailable(f"{given.model} {pull.state}: {pull.message}")
    return pull.version


def _scale(given: argparse.Namespace) -> int:
    with connect(given) as client:
        scaled = client.deployments.scale(given.name, given.replicas)
        return finish(client, scaled, given, way_out="`trivet scale {name} N` with fewer takes it away")


def finish(
    client: Client,
    deployment: Deployment,
    given: argparse.Namespace,
    before: Collection[str] = (),
    way_out: str = STOPS,
) -> int:
    """Wait as asked, then say how it came out, with the way out of a failure. Returns the exit code."""
    name = deployment.name
    failed = None
    if not given.no_wait:
        display = Display(name)
        try:
            deployment, failed = wait_until_ready(client, name, display.show, given.timeout, before)
        except KeyboardInterrupt:
            display.close()
            note(f"{name} {GOES_ON.format(name=name)}")
            raise
        finally:
            display.close()
    if failed is not None:
        explain_failure(client, failed)
        serving = [one for one in client.deployments.get(name).instances if one.state == "ready"]
        goes_on = f"still serving: {counted(len(serving), 'instance')} of {name}; " if serving else ""
        note(f"{goes_on}{way_out.format(name=name)}")
    if given.json:
        print_json(deployment)
    elif failed is None:
        print(f"{name} {_outcome(client, deployment, given.no_wait)}")
        for notice in dict.fromkeys(notice for each in deployment.instances for notice in each.notices):
            note(f"{name}: {notice}")
    return 0 if failed is None else 1


def _outcome(client: Client, deployment: Deployment, has_not_waited: bool) -> str:
    if deployment.replicas == 0:
        return "has no instances now"
    if deployment.is_asleep:
        return "is asleep; a request wakes it"
    return "is starting" if has_not_waited else f"is ready at {client.base_url}/v1"


def instances_of(launched: Deployment) -> frozenset[str]:
    """Ids in the answer to a launch: all are of an earlier one, since none is made before it is answered."""
    return frozenset(instance.id for instance in launched.instances)


def wait_until_ready(
    client: Client,
    name: str,
    show: Callable[[Deployment], None],
    timeout_s: float | None = None,
    before: Collection[str] = (),
) -> tuple[Deployment, Instance | None]:
    """Follow a deployment until all its replicas are ready, or one has failed (it is the second value).

    Instances whose ids are in `before` are those of an earlier launch of this name, which the supervisor
    has not cleared away yet: neither their failure nor their readiness is news.

    Without `timeout_s` there is no deadline here: the supervisor keeps one for each state, and waiting
    for room on a device may rightly take hours.

    Raises: Conflict, NotFound if someone else stops it meanwhile; Unavailable at the deadline.
    """
    deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    staleness = StalenessWatch(client)
    while True:
        deployment = client.deployments.get(name)
        own = tuple(instance for instance in deployment.instances if instance.id not in before)
        deployment = msgspec.structs.replace(deployment, instances=own)
        show(deployment)
        if deployment.desired != "running":
            raise Conflict(f"{name} was stopped while it was waited for; see `trivet events {name}`")
        if deployment.is_asleep:
            return deployment, None
        live = [instance for instance in deployment.instances if instance.state != "stopped"]
        failed = [instance for instance in live if _has_failed(instance)]
        if failed:
            return deployment, failed[-1]
        if len(live) == deployment.replicas and all(instance.state == "ready" for instance in live):
            return deployment, None
        if time.monotonic() > deadline_s:
            raise Unavailable(f"{name} is not ready after {timeout_s:g} s; it {GOES_ON.format(name=name)}")
        staleness.turn()
        time.sleep(POLL_INTERVAL_S)


def _has_failed(instance: Instance) -> bool:
    """One attempt has failed, even if the supervisor is about to try again."""
    waits_for_retry = instance.state == "pending" and instance.attempt > 0
    return instance.state in FAILED_STATES or waits_for_retry


def explain_failure(client: Client, instance: Instance) -> None:
    """The reason and the last log lines, on standard error."""
    note(
        f"instance {instance.id} of {instance.deployment} {instance.state}: "
        f"{instance.reason or 'no reason given'}"
    )
    try:
        lines = "".join(client.logs(instance.id, tail=NUM_LOG_LINES)).rstrip("\n").split("\n")
    except TrivetError:  # it failed before it had a log; the reason above is what counts
        note(f"more: trivet events {instance.deployment}")
        return
    if any(lines):
        note("last lines of its log:")
        for line in lines[-NUM_LOG_LINES:]:
            note(f"  {line.rstrip().rpartition(CARRIAGE_RETURN)[2]}")  # of a progress bar its last state
    note(f"more: trivet logs {instance.deployment}, trivet events {instance.deployment}")


class Display:
    """The states of a deployment's instances: one line that changes on a terminal, else one per change."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._is_line_open = False

    def show(self, deployment: Deployment) -> None:
        live = [instance for instance in deployment.instances if instance.state != "stopped"]
        states = ", ".join(_state(instance) for instance in live)
        states = states or ("pending" if deployment.replicas else "0 replicas")
        if states == self._last:
            return
        line = f"{self._name}: {states}"
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be written over
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
            self._is_line_open = True
        elif _words(states) != _words(self._last):  # not a line for each percent
            note(line)
        self._last = states

    def close(self) -> None:
        """What is printed next begins on a line of its own."""
        if self._is_line_open:
            print(file=sys.stderr)
            self._is_line_open = False


def _state(instance: Instance) -> str:
    if instance.state in ("pending", "placing") and instance.reason:
        return f"{instance.state} ({instance.reason})"
    if instance.state == "loading" and instance.progress is not None:
        return f"{instance.state} {instance.progress:.0%}"
    return instance.state


def _words(states: str) -> list[str]:
    return [word for word in states.split() if not word.strip(",").endswith("%")]


COMMANDS = (
    Command("launch", "serve a model and wait until it is ready", _add_launch_arguments, _launch),
    Command("scale", "change the number of instances of a deployment", _add_scale_arguments, _scale),
)
