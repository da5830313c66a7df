"""`client.models`, `.deployments`, `.instances`: what `/platform/v1` keeps, as small collections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec

from trivet.client.connection import Connection
from trivet.client.results import Deployment, Instance, Model, PrefixCacheReset, ServedModel, Version
from trivet.errors import ModelNotFound

T = TypeVar("T")
ROOT = "/platform/v1"


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """`{"data": [...]}`."""

    data: tuple[T, ...] = ()


class Models:
    """The registry of models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> tuple[Model, ...]:
        return self._connection.request("GET", f"{ROOT}/models", Listing[Model]).data

    def get(self, name: str) -> Model:
        """Raises: ModelNotFound naming what exists."""
        models = {model.name: model for model in self.list()}
        try:
            return models[name]
        except KeyError:
            known = ", ".join(sorted(models)) or "none yet; add one with `trivet models add PATH`"
            raise ModelNotFound(f"no model is named {name!r}; registered: {known}", param="name") from None

    def add(self, path: str, name: str | None = None) -> Version:
        """Register a folder or GGUF file of the server's host. Raises: ModelFilesError."""
        body = {"path": path} if name is None else {"path": path, "name": name}
        return self._connection.request("POST", f"{ROOT}/models", Version, body=body)

    def remove(self, name: str) -> None:
        """Forget a model ("name") or one version ("name:version"); its files stay.

        Raises: ModelNotFound; Conflict while it is deployed.
        """
        self._connection.request("DELETE", f"{ROOT}/models/{quote(name, safe='')}", object)

    def served(self) -> tuple[ServedModel, ...]:
        """What can be asked now, from `/v1/models`."""
        return self._connection.request("GET", "/v1/models", Listing[ServedModel]).data


class Deployments:
    """What shall run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        model: str,
        *,
        name: str | None = None,
        backend: str = "auto",
        device: str | None = None,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        priority: int = 0,
        fallback: str | None = None,
    ) -> Deployment:
        """Ask for a model to be served; `get` shows when it is. Raises: Conflict if the name runs already."""
        wanted = {
            "model": model,
            "name": name,
            "backend": backend,
            "device": device,
            "replicas": replicas,
            "settings": dict(settings or {}),
            "priority": priority or None,
            "fallback": fallback,
        }
        body = {key: value for key, value in wanted.items() if value is not None}
        return self._connection.request("POST", f"{ROOT}/deployments", Deployment, body=body)

    def list(self) -> tuple[Deployment, ...]:
        return self._connection.request("GET", f"{ROOT}/deployments", Listing[Deployment]).data

    def get(self, name: str) -> Deployment:
        """Raises: NotFound."""
        return self._connection.request("GET", _path(name), Deployment)

    def scale(self, name: str, replicas: int) -> Deployment:
        """Raises: NotFound."""
        return self._connection.request("PATCH", _path(name), Deployment, body={"replicas": replicas})

    def update(self, name: str, changes: Mapping[str, object]) -> Deployment:
        """Change what runs: model, backend, device, replicas, settings, priority, fallback.

        Settings are merged; None takes one back. Other instances replace the running ones as they become
        ready. Raises: NotFound; Conflict where it is stopped.
        """
        return self._connection.request("PATCH", _path(name), Deployment, body=dict(changes))

    def stop(self, name: str, drain_timeout_s: float | None = None) -> None:
        """Take no new requests, finish the running ones until the deadline, then end. Raises: NotFound."""
        query = {"drain_timeout_s": drain_timeout_s}
        self._connection.request("DELETE", _path(name), object, query=query)


class Instances:
    """What does run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, deployment: str | None = None, *, ended: bool = False) -> tuple[Instance, ...]:
        """`ended` includes those that are stopped, failed or lost."""
        query = {"deployment": deployment, "all": 1 if ended else None}
        return self._connection.request("GET", f"{ROOT}/instances", Listing[Instance], query=query).data

    def reset_prefix_cache(self, instance_id: str) -> int:
        """The engine forgets every prefix, what runs goes on. Returns how many tokens it knew.

        Raises: NotFound; Conflict if it is not ready.
        """
        path = f"{ROOT}/instances/{quote(instance_id, safe='')}/reset-prefix-cache"
        return self._connection.request("POST", path, PrefixCacheReset).forgotten_tokens


def _path(deployment: str) -> str:
    return f"{ROOT}/deployments/{quote(deployment, safe='')}"
