"""A small HTTP server that speaks the management and inference JSON, for the client and the commands.

It plays a server whose supervisor moves instances one state further each time they are asked for.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from flask import Flask, Response, jsonify, request
from werkzeug.serving import BaseWSGIServer, make_server

TOKEN = "the-token"
BOOT = ["pending", "starting", "loading", "warming", "ready"]
NOW = "2026-11-29T20:00:00Z"


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `tests/run soak`; unknown where this folder is not named on the command line."""
    parser.addoption(
        "--soak-minutes", type=float, default=0.0, help="how long the crowd lasts (0: short form)"
    )


@pytest.fixture
def soak_minutes(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--soak-minutes", default=0.0))


@dataclass
class Site:
    """What the server knows; tests read and change it."""

    url: str = ""
    boot: list[str] = field(default_factory=lambda: list(BOOT))  # states of every new instance
    failure_reason: str = "DoesNotFit: weights 9.0 GiB, free 1.0 GiB"
    notices: list[str] = field(default_factory=list)  # of every instance
    log: str | None = "loading weights\nout of memory\n"
    answer: list[str] = field(default_factory=lambda: ["The", " capital", " is", " Paris", "."])
    stop_states: list[str] = field(default_factory=lambda: ["draining", "stopping", "stopped"])
    num_made: int = -1  # instances so far, less one: the first is number 0
    num_unseen: int = 0  # so many views of a deployment before the supervisor has made its instances
    stop_after: int | None = None  # so many views of a deployment until someone stops it
    relaunch_after: int | None = None  # so many views of a deployment until someone launches it again
    break_stream: str | None = None  # "cut": the stream ends early; "error": it carries an error event
    supervisor_up: bool = True
    requests: list[tuple[str, str, Any]] = field(default_factory=list)  # method, path, JSON body
    token: str = TOKEN
    authorization: list[str | None] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployments: dict[str, dict[str, Any]] = field(default_factory=dict)

    def view(self, name: str) -> dict[str, Any]:
        """A deployment as JSON; its instances then move one state further."""
        deployment = self.deployments[name]
        if self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after == 0:
                deployment["desired"] = "stopped"
        if self.relaunch_after is not None:
            self.relaunch_after -= 1
            if self.relaunch_after == 0:
                deployment["desired"] = "running"
        if self.num_unseen > 0:
            self.num_unseen -= 1
            return {**deployment, "instances": []}
        shown = {**deployment, "instances": [self.instance_view(i) for i in deployment["instances"]]}
        for instance in deployment["instances"]:
            if len(instance["states"]) > 1:
                instance["states"].pop(0)
                instance["attempt"] += instance["states"][0] == "starting"
        return shown

    def instance_view(self, instance: dict[str, Any]) -> dict[str, Any]:
        state = instance["states"][0]
        plan = {
            "parts": [{"name": "weights", "size_bytes": 90 << 20}, {"name": "kv", "size_bytes": 45 << 20}],
            "num_blocks": [129],
            "block_size": 16,
            "max_model_len": 2048,
            "max_num_batched_tokens": 256,
        }
        return {
            "id": instance["id"],
            "deployment": instance["deployment"],
            "model": "smollm2",
            "backend": "cpu",
            "device_uids": ["host"],
            "state": state,
            "reason": {"failed": self.failure_reason, "placing": "waits for room"}.get(state, ""),
            "pid": 4711,
            "attempt": instance["attempt"],
            "progress": 0.5 if state == "loading" else None,
            "plan": plan,
            "load": {"num_running": 1, "num_waiting": 0, "num_tokens_outstanding": 7, "kv_usage": 0.25},
            "created_at": NOW,
            "ready_at": NOW if state == "ready" else None,
            "as_of": NOW,
            "notices": self.notices,
        }

    def is_ready(self, name: str) -> bool:
        return any(i["states"][0] == "ready" for i in self.deployments[name]["instances"])

    def launch(self, name: str, body: dict[str, Any]) -> None:
        self.deployments[name] = {
            "name": name,
            "model": body["model"],
            "version": 1,
            "backend": body.get("backend", "auto"),
            "device": body.get("device"),
            "replicas": body.get("replicas", 1),
            "settings": body.get("settings", {}),
            "desired": "running",
            "created_at": NOW,
            "instances": [],
        }
        self.fill(name)

    def change(self, name: str, body: dict[str, Any]) -> None:
        """As the server: what engines are started with makes a generation beside the one that serves."""
        deployment = self.deployments[name]
        deployment["replicas"] = body.get("replicas", deployment["replicas"])
        if body.keys() & {"model", "backend", "device", "settings"}:
            deployment["generation"] = deployment.get("generation", 1) + 1
            older, deployment["instances"] = deployment["instances"], []
            self.fill(name)
            deployment["instances"][:0] = older
        else:
            self.fill(name)

    def fill(self, name: str) -> None:
        deployment = self.deployments[name]
        wanted = deployment["replicas"]
        have = deployment["instances"]
        while len(have) < wanted:
            self.num_made += 1
            have.append(
                {"id": f"{name}-{self.num_made}", "deployment": name, "states": list(self.boot), "attempt": 0}
            )
        del have[wanted:]


def _error(status: int, code: str, message: str, **headers: str) -> Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return Response(json.dumps(body), status, headers, mimetype="application/json")


class Views:
    """The routes, as methods of their own names."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def before(self) -> Response | None:
        """Keep the request; management needs the token."""
        self.site.requests.append(
            (request.method, request.full_path.rstrip("?"), request.get_json(silent=True))
        )
        given = request.headers.get("Authorization")
        self.site.authorization.append(given)
        if request.path.startswith("/platform") and given != f"Bearer {self.site.token}":
            return _error(401, "invalid_api_key", "this needs the site's token")
        return None

    def status(self) -> Any:
        return {
            "version": "0.1.0",
            "supervisor": {"up": self.site.supervisor_up, "pid": 12, "as_of": NOW},
            "auth": "auto",
        }

    def models(self) -> Any:
        return {"data": list(self.site.models.values())}

    def add_model(self) -> Any:
        path = request.get_json()["path"]
        name = request.get_json().get("name", "smollm2")
        version = {
            "version": 1,
            "path": path,
            "format": "gguf",
            "quantization": "q4_1",
            "architecture": "LlamaForCausalLM",
            "size_bytes": 94 << 20,
            "context_length": 8192,
            "source": "local",
            "created_at": NOW,
        }
        self.site.models[name] = {"name": name, "versions": [version]}
        return version, 201

    def model(self, name: str) -> Any:
        if name not in self.site.models:
            return _error(404, "model_not_found", f"model {name!r} is not registered")
        return self.site.models[name]

    def version(self, reference: str) -> Any:
        name, _, number = reference.partition(":")
        if name not in self.site.models or number not in ("", "1"):
            return _error(404, "model_not_found", f"model {reference!r} is not registered")
        return {"name": name, **self.site.models[name]["versions"][0]}

    def remove_model(self, name: str) -> Any:
        if any(d["model"] == name for d in self.site.deployments.values()):
            return _error(409, "conflict", f"{name} is deployed; stop it first")
        del self.site.models[name]
        return "", 204

    def create(self) -> Any:
        body = request.get_json()
        if body["model"] == "nothing":
            return _error(404, "model_not_found", "model 'nothing' is not registered")
        name = body.get("name", "smollm2")
        old = self.site.deployments.get(name, {"desired": "stopped", "instances": []})
        if old["desired"] == "running" and any(i["states"][0] != "failed" for i in old["instances"]):
            return _error(409, "conflict", f"deployment {name!r} runs already")
        self.site.launch(name, body)
        earlier = [self.site.instance_view(instance) for instance in old["instances"]]
        made = {**self.site.view(name), "instances": earlier}
        self.site.deployments[name]["instances"][:0] = old["instances"]  # until the supervisor sees to them
        return made, 201

    def deployments(self) -> Any:
        return {"data": [self.site.view(name) for name in self.site.deployments]}

    def deployment(self, name: str) -> Any:
        if name not in self.site.deployments:
            return _error(404, "not_found", f"deployment {name!r} does not exist")
        if request.method == "PATCH":
            self.site.change(name, request.get_json())
        if request.method == "DELETE":
            self.site.deployments[name]["desired"] = "stopped"
            for instance in self.site.deployments[name]["instances"]:
                instance["states"] = list(self.site.stop_states)
        return self.site.view(name)

    def instances(self) -> Any:
        found = [
            self.site.instance_view(instance)
            for deployment in self.site.deployments.values()
            for instance in deployment["instances"]
            if request.args.get("deployment") in (None, instance["deployment"])
        ]
        return {"data": [i for i in found if i["state"] != "stopped" or request.args.get("all") == "1"]}

    def events(self) -> Any:
        name = request.args.get("deployment", "smollm2")
        if name == "nope":
            return {"data": []}
        event = {"id": 1, "at": NOW, "deployment": name, "instance": "i1", "kind": "instance"}
        return {"data": [{**event, "from": "starting", "to": "loading", "reason": "weights"}]}

    def logs(self, instance: str) -> Any:
        if self.site.log is None:
            return _error(404, "not_found", f"instance {instance} has no log")
        return Response(self.site.log, mimetype="text/plain")

    def devices(self) -> Any:
        return {"data": [{"uid": "host", "kind": "cpu", "name": "a CPU", "total_bytes": 1, "novel": True}]}

    def plan(self) -> Any:
        return {
            "backend": "cpu",
            "device": "host",
            "parts": [{"name": "weights", "size_bytes": 94 << 20}, {"name": "kv", "size_bytes": 45 << 20}],
            "num_blocks": [129],
            "block_size": 16,
            "max_model_len": 1024,
            "max_num_batched_tokens": 256,
            "fits": True,
            "reason": None,
        }

    def usage(self) -> dict[str, int]:
        n = len(self.site.answer)
        return {"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n}

    def stream_events(self, make: Callable[[str | None, str | None], dict[str, Any]]) -> Iterator[str]:
        site = self.site
        yield ": ping\n\n"
        for text in site.answer[: 2 if site.break_stream else None]:
            yield f"data: {json.dumps(make(text, None))}\n\n"
        if site.break_stream == "error":
            error = {"message": "engine 7 was killed", "type": "server_error", "code": "engine_lost"}
            yield f"data: {json.dumps({'error': error})}\n\n"
        if site.break_stream is not None:
            return
        yield f"data: {json.dumps(make(None, 'stop'))}\n\n"
        yield f"data: {json.dumps({'id': 'c', 'model': 'm', 'choices': [], 'usage': self.usage()})}\n\n"
        yield "data: [DONE]\n\n"

    def answer(self, whole: dict[str, Any], make: Callable[[str | None, str | None], dict[str, Any]]) -> Any:
        body = request.get_json()
        if body["model"] == "busy":
            return _error(429, "overloaded", "the queue is full", **{"Retry-After": "7"})
        if body.get("stream"):
            return Response(self.stream_events(make), mimetype="text/event-stream")
        return {"id": "c", "model": body["model"], "choices": [whole], "usage": self.usage()}

    def chat(self) -> Any:
        whole = {"index": 0, "message": {"role": "assistant", "content": "".join(self.site.answer)}}
        return self.answer(
            {**whole, "finish_reason": "stop"},
            lambda text, end: {
                "id": "c",
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": end}],
            },
        )

    def completions(self) -> Any:
        return self.answer(
            {"index": 0, "text": "".join(self.site.answer), "finish_reason": "stop"},
            lambda text, end: {
                "id": "c",
                "model": "m",
                "choices": [{"index": 0, "text": text or "", "finish_reason": end}],
            },
        )

    def served(self) -> Any:
        data = [
            {"id": n, "max_model_len": 2048, "ready": self.site.is_ready(n)} for n in self.site.deployments
        ]
        return {"object": "list", "data": data}

    def health(self) -> Any:
        return jsonify(status="ok")

    def ready(self) -> Any:
        return ("", 200) if self.site.deployments else ("", 503)


ROUTES = (
    ("GET", "/platform/v1/status", "status"),
    ("GET", "/platform/v1/models", "models"),
    ("POST", "/platform/v1/models", "add_model"),
    ("GET", "/platform/v1/models/<name>", "model"),
    ("GET", "/platform/v1/versions/<reference>", "version"),
    ("DELETE", "/platform/v1/models/<name>", "remove_model"),
    ("POST", "/platform/v1/deployments", "create"),
    ("GET", "/platform/v1/deployments", "deployments"),
    ("GET|PATCH|DELETE", "/platform/v1/deployments/<name>", "deployment"),
    ("GET", "/platform/v1/instances", "instances"),
    ("GET", "/platform/v1/events", "events"),
    ("GET", "/platform/v1/logs/<instance>", "logs"),
    ("GET", "/platform/v1/devices", "devices"),
    ("POST", "/platform/v1/plan", "plan"),
    ("POST", "/v1/chat/completions", "chat"),
    ("POST", "/v1/completions", "completions"),
    ("GET", "/v1/models", "served"),
    ("GET", "/health", "health"),
    ("GET", "/health/ready", "ready"),
)


def _app(site: Site) -> Flask:
    app = Flask("site")
    views = Views(site)
    app.before_request(views.before)
    for methods, path, name in ROUTES:
        app.add_url_rule(path, name, getattr(views, name), methods=methods.split("|"))
    return app


@pytest.fixture
def site(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A running server; TRIVET_HOME, TRIVET_HOST and TRIVET_PORT point at it."""
    state = Site()
    server: BaseWSGIServer = make_server("127.0.0.1", 0, _app(state), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    run = tmp_path / "home" / "run"
    run.mkdir(parents=True, mode=0o700)
    (run / "token").write_text(TOKEN + "\n")
    (run / "token").chmod(0o600)
    (run / "serve.lock").write_text(str(os.getpid()))  # as `trivet serve` writes itself there
    monkeypatch.setenv("TRIVET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRIVET_HOST", "127.0.0.1")
    monkeypatch.setenv("TRIVET_PORT", str(server.server_port))
    yield state
    server.shutdown()
    thread.join(10)
    server.server_close()
