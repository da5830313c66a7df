"""POST /v1/models launches, DELETE ends; GET is OpenAI's, with what Xinference's clients read beside."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

from flask import Blueprint, Response, request

from trivet.errors import Overloaded, Unavailable
from trivet_registry.deployments_store import create_deployment, stop_deployment
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.instances_store import list_instances
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.inference import client_fd
from trivet_web.api.management.deployments import check_backend, deployment_facts
from trivet_web.api.request_body import read_body
from trivet_web.dialects.xinference.launch_request import read_launch
from trivet_web.dialects.xinference.objects import ClusterAuth, LaunchedObject
from trivet_web.json_response import json_response
from trivet_web.models.adapter_folders import check_adapters
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("xinference", __name__)
READY_TIMEOUT_S = 1800.0  # large weights from a slow disk
END_TIMEOUT_S = 60.0
_LOOK_S = 0.1
_LIVING = LIVE_STATES - {InstanceState.FAILED}


@blueprint.get("/v1/cluster/auth")
@requires(Right.NOTHING)
@documented(ClusterAuth)
def cluster_auth() -> Response:
    """Whether a key is of use: launching needs one, unless the site asks for none at all."""
    return json_response(ClusterAuth(web_process().settings.auth != "off"))


@blueprint.post("/v1/models")
@requires(Right.OPERATE)
@documented(LaunchedObject, body=dict[str, Any], query={"wait_ready": bool})
def launch() -> Response:
    """Launch a model, and wait until it serves.

    Raises: ModelNotFound, ModelFilesError, Conflict, ConfigError, RequestError, Unavailable; Overloaded where
    no thread is left to wait on.
    """
    fields, settings = read_launch(read_body(dict[str, Any]))
    process = web_process()
    check_backend(process, fields.backend)
    check_adapters(settings, process.settings)
    waits = request.args.get("wait_ready", "true").lower() != "false"
    with ExitStack() as slot:
        if waits:
            slot.callback(process.slots.take())
        earlier = process.router.table(fresh=True).get(fields.name)
        ended = frozenset(one.id for one in earlier.instances) if earlier else frozenset()
        files = fields.files(process)
        with process.database.session() as session:
            chosen = fields.chosen(session, files)
            row = create_deployment(
                session,
                name=fields.name,
                version=chosen.version,
                alias=chosen.alias,
                backend=fields.backend,
                device=fields.device,
                replicas=fields.replica or 1,
                settings=settings,
            )
            record(session, "deployment.launch", row.name, after=deployment_facts(row))
        process.supervisor.wake()
        if waits:
            _wait(process, fields.name, ended)
    return json_response(LaunchedObject(fields.name))


@blueprint.delete("/v1/models/<model_uid>")
@requires(Right.OPERATE)
@documented(dict[str, str])
def terminate(model_uid: str) -> Response:
    """Stop a model, and wait until what it is doing has ended. Raises: NotFound."""
    process = web_process()
    with process.database.session() as session:
        stop_deployment(session, model_uid, None)
        record(session, "deployment.stop", model_uid)
    process.supervisor.wake()
    process.router.table(fresh=True)
    _wait_for_end(process, model_uid)
    return json_response({})


def _wait_for_end(process: WebProcess, name: str) -> None:
    """Clients unregister its files next. No longer than a client waits.

    Not at all while nobody ends it, or no thread is left to wait on: a stop works on a busy site, too.
    """
    latest_s = time.monotonic() + END_TIMEOUT_S
    gone = threading.Event()
    with suppress(Overloaded), ExitStack() as slot, process.hang_up.watching(client_fd(), gone.set):
        slot.callback(process.slots.take())
        while time.monotonic() < latest_s and process.supervisor.is_up():
            with process.database.reading() as session:
                if not list_instances(session, name, _LIVING):
                    return
            if gone.wait(_LOOK_S) or process.is_draining:
                return


def _wait(process: WebProcess, name: str, ended: frozenset[str]) -> None:
    """`ended`: ids of instances of before, whose failure is no news.

    Raises: Unavailable where its instances failed, it was stopped, or it takes too long.
    """
    latest_s = time.monotonic() + READY_TIMEOUT_S
    gone = threading.Event()
    with process.hang_up.watching(client_fd(), gone.set):
        while time.monotonic() < latest_s:
            deployed = process.router.table(fresh=True).get(name)
            if deployed is None:
                raise Unavailable(f"model {name!r} was stopped before it was ready")
            if process.router.has_instance(deployed):
                return
            new = [one for one in deployed.instances if one.id not in ended]
            if new and all(one.state == "failed" for one in new):
                raise Unavailable(f"model {name!r} did not start: instance {new[0].id}: {new[0].reason}")
            if gone.wait(_LOOK_S) or process.is_draining:
                break
    raise Unavailable(f"model {name!r} is not ready yet; ask for it later, or look at `trivet ps`")
