"""`trivet diagnose NAME`: everything that explains a deployment, in one archive without secrets.

What it prints is the short form: what is wrong, and where the time to the first token goes.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import note
from trivet.commands.redaction import Redactor, secrets_of
from trivet.commands.ttft import NAMES, explain
from trivet.config import load_settings, process_environment
from trivet.errors import TrivetError
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client, Deployment, Instance
    from trivet.commands.ttft import Verdict

MAX_EVENTS = 1000
LOG_LINES = 2000
MAX_INSTANCES = 20  # whose logs are taken, the newest
WELL = ("ready", "stopped")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a deployment, see `trivet ps --all`")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the archive (diagnose-NAME-TIME.tar.gz)"
    )
    parser.add_argument(
        "--window", type=int, default=900, metavar="SECONDS", help="of the figures, up to a day (900)"
    )
    add_server_options(parser)


def _run(given: argparse.Namespace) -> int:
    file = given.output or Path(f"diagnose-{given.name}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    with connect(given) as client:
        redactor = Redactor([*secrets_of(load_settings(), process_environment()), client.api_key or ""])
        deployment = client.deployments.get(given.name)
        with _archive(file) as archive:
            for name, text in _contents(client, deployment, given.window):
                _add(archive, name, redactor.clean(text))
        problems = _problems(deployment)
        verdict = explain(client.history(given.window, names=NAMES, deployment=given.name))
    for problem in problems or ["every instance that is wanted is ready"]:
        print(redactor.clean(problem))
    print("\n".join(_told(verdict)))
    print(f"{file}: history, plan, settings, devices, figures and logs, without secrets")
    return 1 if problems else 0


def _contents(client: Client, deployment: Deployment, window_s: int) -> Iterator[tuple[str, str]]:
    """Name in the archive, and text. What cannot be had says why in its place."""
    name = deployment.name
    instances = client.instances.list(name, ended=True)
    yield "deployment.json", _json(deployment)
    yield "instances.json", _json(instances)
    yield "events.json", _or_reason(lambda: _json(client.events(name, MAX_EVENTS)))
    yield "devices.json", _or_reason(lambda: _json(client.devices()))
    yield "status.json", _or_reason(lambda: _json(client.status()))
    yield "history.json", _or_reason(lambda: _json(client.history(window_s)))
    reference = deployment.model if deployment.version is None else f"{deployment.model}:{deployment.version}"
    yield (
        "plan.json",
        _or_reason(
            lambda: _json(
                client.plan(
                    reference,
                    backend=deployment.backend,
                    device=deployment.device,
                    settings=deployment.settings,
                )
            )
        ),
    )
    yield "doctor.json", _or_reason(_doctor)
    for instance in instances[-MAX_INSTANCES:]:
        yield f"logs/{instance.id}.log", _log(client, instance, None)
        yield f"logs/{instance.id}-first-crash.log", _log(client, instance, "first-crash")


def _log(client: Client, instance: Instance, attempt: str | None) -> str:
    return _or_reason(lambda: "".join(client.logs(instance.id, attempt=attempt, tail=LOG_LINES)))


def _doctor() -> str:
    from trivet.commands.host_checks import check_host
    from trivet.commands.site_checks import check_site

    return _json([*check_host(), *check_site()])


def _problems(deployment: Deployment) -> list[str]:
    """A sentence for each instance that should serve and does not."""
    if deployment.desired != "running":
        return []
    found = [_problem(instance) for instance in deployment.instances if instance.state not in WELL]
    missing = deployment.replicas - len(deployment.instances)
    if missing > 0:
        found.append(f"{missing} of {deployment.replicas} replicas have no instance yet")
    return found


def _problem(instance: Instance) -> str:
    reason = f": {instance.reason}" if instance.reason else ""
    return f"instance {instance.id} is {instance.state} (attempt {instance.attempt}){reason}"


def _told(verdict: Verdict | None) -> list[str]:
    if verdict is None:
        return ["time to first token: no request began in this time"]
    parts = ", ".join(f"{part} {1e3 * seconds:.0f} ms" for part, seconds in verdict.parts_s.items())
    return [
        f"time to first token: {1e3 * verdict.ttft_s:.0f} ms in the mean of {verdict.num_requests} ({parts})",
        f"  cause: {verdict.cause}",
        f"  cure:  {verdict.cure}",
    ]


@contextmanager
def _archive(file: Path) -> Iterator[tarfile.TarFile]:
    """Closed to other accounts: logs may name what is nobody else's business."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # also of a file that was there
    with open(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
        yield archive


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(f"diagnose/{name}")
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(data))


def _or_reason(get: Callable[[], str]) -> str:
    try:
        return get()
    except TrivetError as error:
        note(f"left out: {error}")
        return f"not there: {error}\n"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


COMMANDS = (Command("diagnose", "collect what explains a deployment, without secrets", _add_arguments, _run),)
