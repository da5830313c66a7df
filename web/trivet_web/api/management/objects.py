"""What /platform/v1 answers with, as structs, and how they are read from the registry's rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from trivet.messages import EngineLoad
from trivet_registry import tables
from trivet_registry.aliases_store import followed_by
from trivet_registry.models_store import version_files
from trivet_web.engines.engine_link import EngineView

T = TypeVar("T")


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """Every list."""

    data: list[T]


class SupervisorObject(msgspec.Struct, frozen=True):
    """`as_of` is when it was last heard, `problem` why its last turn failed, such as a full disk."""

    up: bool
    pid: int | None
    as_of: datetime | None
    problem: str = ""


class StatusObject(msgspec.Struct, frozen=True):
    """The site."""

    version: str
    supervisor: SupervisorObject
    auth: str


class VersionObject(msgspec.Struct, frozen=True):
    """One immutable set of model files."""

    name: str
    version: int
    path: str
    format: str
    quantization: str | None
    architecture: str
    size_bytes: int
    context_length: int
    source: str
    created_at: datetime
    licence: str | None
    abilities: list[str]
    aliases: list[str]  # that point at it
    digest: str | None  # of all its files; null until they have been read through
    is_stored: bool  # in the site's own store; else the files lie where they were registered


class FileObject(msgspec.Struct, frozen=True):
    """One file of a version."""

    name: str
    size_bytes: int
    sha256: str | None


class VersionDetails(VersionObject, frozen=True):
    """All that the registry knows of a version."""

    spec: dict[str, Any]
    chat_template: str | None
    files: list[FileObject]
    signed_by: str | None


class ProblemObject(msgspec.Struct, frozen=True):
    """What is wrong with a file."""

    name: str
    problem: str


class VerifiedObject(msgspec.Struct, frozen=True):
    """A version that was read through; without problems it is what was registered."""

    version: str
    digest: str | None
    problems: list[ProblemObject]


class StoreObject(msgspec.Struct, frozen=True):
    """Files in the store, or those that were removed from it."""

    num_files: int
    size_bytes: int


class AliasObject(msgspec.Struct, frozen=True):
    """A movable name of a version."""

    model: str
    alias: str
    version: int
    updated_at: datetime


class AliasMoveObject(msgspec.Struct, frozen=True, rename={"from_version": "from", "to_version": "to"}):
    """It was moved; null: it was made, or removed."""

    at: datetime
    from_version: int | None
    to_version: int | None


class ModelObject(msgspec.Struct, frozen=True):
    """A registered name."""

    name: str
    versions: list[VersionObject]
    aliases: dict[str, int]  # version by alias


class LoadObject(msgspec.Struct, frozen=True):
    """How busy an instance is; token counts are totals since its process started."""

    num_running: int
    num_waiting: int
    num_tokens_outstanding: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int


class InstanceObject(msgspec.Struct, frozen=True):
    """One engine process, as observed `as_of`."""

    id: str
    deployment: str
    model: str
    backend: str | None
    device_uids: list[str]
    state: str
    reason: str
    pid: int | None
    attempt: int
    progress: float | None  # share of the weights loaded
    plan: dict[str, Any] | None
    memory: dict[str, int] | None  # measured, by the plan's names, and "resident" (messages.RESIDENT)
    load: LoadObject | None
    created_at: datetime
    ready_at: datetime | None
    as_of: datetime
    notices: list[str]  # what the engine warns of though it works
    generation: int  # of its deployment when it was made: an older one than that is being replaced
    processes: list[dict[str, Any]]  # pid and start_time of the engine and its ranks


class DeploymentObject(msgspec.Struct, frozen=True):
    """What shall run, and the instances that do."""

    name: str
    model: str
    version: int
    backend: str
    device: str | None
    replicas: int
    settings: dict[str, str]
    alias: str | None  # that it follows
    desired: str
    created_at: datetime
    instances: list[InstanceObject]
    priority: int
    fallback: str | None
    generation: int
    is_asleep: bool  # idle: unloaded until a request comes
    updated_at: datetime  # when somebody last changed what shall run


class EventObject(msgspec.Struct, frozen=True, rename={"from_state": "from", "to_state": "to"}):
    """Something that happened."""

    id: int
    at: datetime
    kind: str
    deployment: str | None
    instance: str | None
    from_state: str | None
    to_state: str | None
    reason: str


class DeviceObject(msgspec.Struct, frozen=True):
    """A device as the supervisor's probe last saw it."""

    kind: str
    uid: str
    host: str  # as its launcher names it; empty: the supervisor's own
    index: int
    name: str
    arch: str
    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    utilisation_percent: int | None
    temperature_c: int | None
    power_w: float | None
    dtypes: list[str]
    versions: dict[str, str]
    unusable_because: str | None
    as_of: datetime
    users: list[dict[str, Any]] | None  # processes with memory there; null where the backend cannot tell


class NodeObject(msgspec.Struct, frozen=True):
    """A host of the site: what it has and what runs there."""

    host: str  # as its launcher names it; empty: the supervisor's own
    devices: list[str]  # uids
    instances: list[str]  # ids of those that live


def node_objects(devices: Iterable[tables.Device], instances: Iterable[tables.Instance]) -> list[NodeObject]:
    """All hosts that have a device or an instance, the supervisor's first."""
    nodes = {"": NodeObject("", [], [])}
    for device in devices:
        nodes.setdefault(device.host, NodeObject(device.host, [], [])).devices.append(device.uid)
    for one in instances:
        host = one.host or ""
        nodes.setdefault(host, NodeObject(host, [], [])).instances.append(one.id)
    return [nodes[host] for host in sorted(nodes)]


def version_object(row: tables.Version) -> VersionObject:
    """From its row."""
    return VersionObject(**_version_fields(row))


def version_details(row: tables.Version) -> VersionDetails:
    """From its row."""
    digests = row.digests or {}
    files = [
        FileObject(name, file["size_bytes"], digests.get(name)) for name, file in version_files(row).items()
    ]
    return VersionDetails(
        **_version_fields(row),
        spec=row.spec or {},
        chat_template=row.chat_template,
        files=files,
        signed_by=row.signed_by,
    )


def _version_fields(row: tables.Version) -> dict[str, Any]:
    names = ("name", "version", "path", "format", "quantization", "architecture", "size_bytes")
    more = ("context_length", "source", "created_at", "licence", "digest", "is_stored")
    fields = {name: getattr(row, name) for name in (*names, *more)}
    return {**fields, "abilities": row.abilities or [], "aliases": followed_by(row)}


def alias_object(row: tables.Alias) -> AliasObject:
    """From its row."""
    return AliasObject(row.model.name, row.name, row.version.version, row.updated_at)


def move_object(row: tables.AliasMove) -> AliasMoveObject:
    """From its row."""
    return AliasMoveObject(row.at, row.from_version, row.to_version)


def model_object(row: tables.Model) -> ModelObject:
    """From its row."""
    versions = [version_object(version) for version in row.versions]
    return ModelObject(row.name, versions, {alias.name: alias.version.version for alias in row.aliases})


def deployment_object(row: tables.Deployment, instances: Iterable[InstanceObject]) -> DeploymentObject:
    """From its row."""
    return DeploymentObject(
        row.name,
        row.version.name,
        row.version.version,
        row.backend,
        row.device,
        row.replicas,
        row.settings,
        row.alias,
        row.desired,
        row.created_at,
        list(instances),
        row.priority,
        row.fallback,
        row.generation,
        row.is_asleep,
        row.updated_at,
    )


def instance_object(row: tables.Instance, view: EngineView | None) -> InstanceObject:
    """The registry's word; load from the engine's own last beat where there is one.

    An engine that this process has just lost is `ready` in the registry for a moment: the reason says so.
    So does it where one is ready and stalled: it gets no requests while there are others.
    """
    lives = view is not None and view.beat is not None and view.lost_because is None
    seen = view if row.state == "ready" else None
    problem = "" if seen is None else seen.lost_because or seen.why_stalled(time.monotonic())
    return InstanceObject(
        id=row.id,
        deployment=row.deployment.name,
        model=row.version.name,
        backend=row.backend,
        device_uids=row.device_uids or [],
        state=row.state,
        reason=problem or row.reason,
        pid=row.pid,
        attempt=row.attempt,
        progress=row.progress,
        plan=row.plan,
        memory=row.memory,
        load=_load(view.load) if view is not None and lives else _stored_load(row),
        created_at=row.created_at,
        ready_at=row.ready_at,
        as_of=row.as_of,
        notices=row.notices or [],
        generation=row.generation,
        processes=row.processes or [],
    )


def event_object(row: tables.Event) -> EventObject:
    """From its row."""
    return EventObject(
        row.id, row.at, row.kind, row.deployment, row.instance, row.from_state, row.to_state, row.reason
    )


def device_object(row: tables.Device) -> DeviceObject:
    """From its row."""
    return DeviceObject(
        row.kind,
        row.uid,
        row.host,
        row.device_index,
        row.name,
        row.arch,
        row.total_bytes,
        row.free_bytes,
        row.reserved_bytes,
        row.used_bytes,
        row.utilisation_percent,
        row.temperature_c,
        row.power_w,
        row.dtypes,
        row.versions,
        row.unusable_because,
        row.as_of,
        row.users,
    )


def _load(load: EngineLoad) -> LoadObject:
    return LoadObject(
        load.num_running,
        load.num_waiting,
        load.num_tokens_outstanding,
        load.kv_usage,
        load.prompt_tokens,
        load.generation_tokens,
    )


def _stored_load(row: tables.Instance) -> LoadObject | None:
    return _load(EngineLoad(**row.load)) if row.load else None
