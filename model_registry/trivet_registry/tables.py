"""The tables, in types that SQLite and PostgreSQL both have.

Rows that a watcher keeps current carry `as_of`, the time at which they were last known to be true.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    event,
    false,
    inspect,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, mapped_column, relationship

from trivet_registry.instance_state import InstanceState

# Columns of a version that may be unknown at first.
SET_ONCE = frozenset({"digests", "digest", "signed_by", "signed_version"})


def utc_now() -> datetime:
    """Now, aware; the only clock of the registry. Durations are never computed from it."""
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time. SQLite drops the zone, so values are stored as UTC and come back as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time {value} has no zone; use trivet_registry.tables.utc_now()")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class JsonObject(TypeDecorator[dict[str, str]]):
    """JSON whose null, as a half-written row may have it, reads as an empty object."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_result_value(self, value: object, dialect: Dialect) -> dict[str, str]:
        return value if isinstance(value, dict) else {}


class JsonList(TypeDecorator[list[str]]):
    """As `JsonObject`, of a list."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_result_value(self, value: object, dialect: Dialect) -> list[str]:
        return value if isinstance(value, list) else []


class Base(DeclarativeBase):
    """Root of the tables. Constraints have names, so that a migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it as a plain dict)
        datetime: UtcDateTime(),
        dict[str, str]: JSON(none_as_null=True),
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
        float: Double(),
    }


class Model(Base):
    """A name under which versions are registered."""

    __tablename__ = "models"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    versions: Mapped[list[Version]] = relationship(
        back_populates="model", order_by="Version.version", cascade="all, delete-orphan", lazy="selectin"
    )
    aliases: Mapped[list[Alias]] = relationship(
        back_populates="model", order_by="Alias.name", cascade="all, delete-orphan", lazy="selectin"
    )


class Version(Base):
    """One set of model files. Never changed: other files are another version.

    `digests` and `digest` may be unknown at first (large files are not read through to register them); they
    are set once, and then stay.
    """

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("model_id", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    version: Mapped[int]  # 1, 2, 3 ... of its model
    path: Mapped[str] = mapped_column(Text)
    format: Mapped[str] = mapped_column(String(32))
    quantization: Mapped[str | None] = mapped_column(String(32))
    architecture: Mapped[str] = mapped_column(String(128))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    context_length: Mapped[int]
    licence: Mapped[str | None] = mapped_column(Text)
    files: Mapped[list[dict[str, Any]]]  # name, size_bytes, mtime_ns
    fingerprint: Mapped[str] = mapped_column(String(64), index=True)  # of path and `files`
    source: Mapped[str] = mapped_column(Text)
    digests: Mapped[dict[str, str] | None]  # SHA-256 by the file's name in the model's folder
    digest: Mapped[str | None] = mapped_column(String(64), index=True)  # of `digests`: what is in the files
    spec: Mapped[dict[str, Any] | None]  # sizes of the architecture (`version_facts`)
    abilities: Mapped[list[str] | None]  # "generate", "chat", "tools", "embed"
    chat_template: Mapped[str | None] = mapped_column(Text, deferred=True)
    is_stored: Mapped[bool] = mapped_column(default=False, server_default=false())  # in the site's own store
    signed_by: Mapped[str | None] = mapped_column(String(64))  # fingerprint of the key of its bundle
    signed_version: Mapped[int | None]  # its number where the bundle was made
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    model: Mapped[Model] = relationship(back_populates="versions", lazy="joined", innerjoin=True)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.version}"


class VersionNumber(Base):
    """The newest number that was given to a version of a model: no number is given twice."""

    __tablename__ = "version_numbers"

    model: Mapped[str] = mapped_column(String(128), primary_key=True)  # a name: it outlives the model
    newest: Mapped[int]


class BundleNumber(Base):
    """The newest bundle that was taken in of a signer's model. It outlives the version, and its name here."""

    __tablename__ = "bundle_numbers"

    signer: Mapped[str] = mapped_column(String(64), primary_key=True)  # fingerprint of the key
    model: Mapped[str] = mapped_column(String(128), primary_key=True)  # as the bundle says
    newest: Mapped[int]
    digest: Mapped[str | None] = mapped_column(String(64))  # of the manifest's files; None: not known


class Alias(Base):
    """A name of one version of a model that can be moved: `prod`, `canary`."""

    __tablename__ = "aliases"
    __table_args__ = (UniqueConstraint("model_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(128))
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id", ondelete="CASCADE"), index=True)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    model: Mapped[Model] = relationship(back_populates="aliases", lazy="joined", innerjoin=True)
    version: Mapped[Version] = relationship(lazy="joined", innerjoin=True)


class AliasMove(Base):
    """Where an alias pointed, and since when. Numbers, not keys: history outlives versions."""

    __tablename__ = "alias_moves"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), index=True)
    alias: Mapped[str] = mapped_column(String(128))
    from_version: Mapped[int | None]  # None: it was made
    to_version: Mapped[int | None]  # None: it was removed
    at: Mapped[datetime] = mapped_column(default=utc_now)


class Pull(Base):
    """A model that comes from a source, or has come, or did not."""

    __tablename__ = "pulls"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    name: Mapped[str | None] = mapped_column(String(128))
    state: Mapped[str] = mapped_column(String(16), default="running")  # "done", "failed", "cancelled"
    message: Mapped[str] = mapped_column(Text, default="")
    done_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    total_bytes: Mapped[int] = mapped_column(BigInteger, default=0)  # 0 until it is known
    version: Mapped[str | None] = mapped_column(Text)  # "name:3", of one that is done
    is_cancelled: Mapped[bool] = mapped_column(default=False)  # somebody wants it to end
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    ended_at: Mapped[datetime | None]


class Deployment(Base):
    """What an operator wants to run. `generation` counts launches and updates under the same name."""

    __tablename__ = "deployments"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id", ondelete="CASCADE"), index=True)
    alias: Mapped[str | None] = mapped_column(String(128))  # of the model; where it moves, `version_id` does
    backend: Mapped[str] = mapped_column(String(64))  # "auto", or names with commas, the preferred first
    device: Mapped[str | None] = mapped_column(String(128))  # uid or index; None: the supervisor chooses
    replicas: Mapped[int]
    settings: Mapped[dict[str, str]] = mapped_column(JsonObject)  # engine_settings.EngineSettings as text
    desired: Mapped[str] = mapped_column(String(16))  # "running" | "stopped"
    drain_timeout_s: Mapped[float | None]  # of its last stop; None: the site's setting
    generation: Mapped[int] = mapped_column(default=1)
    # Instances of it and later ones serve until those of the newest are ready: an update replaces them.
    first_generation: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    priority: Mapped[int] = mapped_column(default=0, server_default=text("0"))  # lower is placed first
    fallback: Mapped[str | None] = mapped_column(String(128))  # deployment that helps out when it is full
    is_asleep: Mapped[bool] = mapped_column(default=False, server_default=false())  # idle: unloaded
    served: Mapped[dict[str, Any] | None]  # served.EngineRules of the last generation that was ready
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    version: Mapped[Version] = relationship(lazy="joined", innerjoin=True)
    instances: Mapped[list[Instance]] = relationship(
        back_populates="deployment", order_by="Instance.created_at", passive_deletes=True
    )


class Instance(Base):
    """One engine process that is wanted, runs or has run; each attempt at it is a process of its own."""

    __tablename__ = "instances"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    deployment_id: Mapped[int] = mapped_column(ForeignKey("deployments.id", ondelete="CASCADE"), index=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id", ondelete="CASCADE"))
    generation: Mapped[int]  # of the deployment when it was made
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(Text, default="")
    backend: Mapped[str | None] = mapped_column(String(64))  # None until placed
    device_uids: Mapped[list[str]] = mapped_column(default=list)
    plan: Mapped[dict[str, Any] | None]  # parts, num_blocks, block_size, max_model_len, ...
    attempt: Mapped[int] = mapped_column(default=0)  # processes started for it so far
    boot_failures: Mapped[int] = mapped_column(default=0)  # in a row, without having been ready
    first_failure: Mapped[str | None] = mapped_column(Text)  # why the first of them failed
    needs_change: Mapped[bool] = mapped_column(default=False, server_default=false())  # no time mends it
    pid: Mapped[int | None]
    process_start_time: Mapped[float | None]  # seconds since boot: a pid is reused, the pair is not
    processes: Mapped[list[dict[str, Any]] | None]  # pid and start_time of the engine and all its ranks
    lease: Mapped[str | None] = mapped_column(String(64))
    exit_code: Mapped[int | None]
    host: Mapped[str | None] = mapped_column(String(128))  # as its launcher names it; None: the supervisor's
    run_dir: Mapped[str | None] = mapped_column(Text)  # with id: its sockets, if it is on this host
    endpoints: Mapped[dict[str, Any] | None]  # trivet.endpoints.Endpoints, once known; of one on another host
    log_file: Mapped[str | None] = mapped_column(Text)  # of this attempt
    progress_done: Mapped[int] = mapped_column(BigInteger, default=0)  # bytes loaded
    progress_total: Mapped[int] = mapped_column(BigInteger, default=0)
    load: Mapped[dict[str, Any] | None]  # messages.EngineLoad
    memory: Mapped[dict[str, Any] | None]  # measured bytes, by the plan's names
    notices: Mapped[list[str] | None]  # messages.Beat: what the engine warns of though it works
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    state_since: Mapped[datetime] = mapped_column(default=utc_now)
    # The same moment on CLOCK_MONOTONIC of the supervisor's host, which nobody can set: deadlines count
    # from it. It is comparable while the process lives, because a reboot ends both.
    entered_s: Mapped[float | None]
    drain_timeout_s: Mapped[float | None]  # of the stop that ended it, once its deployment was launched anew
    ready_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    as_of: Mapped[datetime] = mapped_column(default=utc_now)
    deployment: Mapped[Deployment] = relationship(back_populates="instances", lazy="joined", innerjoin=True)
    version: Mapped[Version] = relationship(lazy="joined", innerjoin=True)

    @property
    def instance_state(self) -> InstanceState:
        return InstanceState(self.state)

    @property
    def progress(self) -> float | None:
        """Share of the weights loaded, 0 to 1; None while unknown."""
        return self.progress_done / self.progress_total if self.progress_total else None


class Fence(Base):
    """An engine that was given up though nobody knows that it has ended (`fences_store`). Names, not keys."""

    __tablename__ = "fences"

    lease: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(String(128))
    instance_id: Mapped[str] = mapped_column(String(16))
    deployment: Mapped[str] = mapped_column(String(128))
    pid: Mapped[int | None]  # None: it was not even known that it had started
    since: Mapped[datetime] = mapped_column(default=utc_now)
    why: Mapped[str] = mapped_column(Text)
    engine: Mapped[dict[str, Any] | None]  # by which it is taken back; None: it is ended in any case


class Device(Base):
    """A device as the supervisor last saw it."""

    __tablename__ = "devices"

    kind: Mapped[str] = mapped_column(String(64), primary_key=True)  # the backend's name
    uid: Mapped[str] = mapped_column(String(128), primary_key=True)
    host: Mapped[str] = mapped_column(String(128), default="", server_default="")  # empty: the supervisor's
    device_index: Mapped[int]
    name: Mapped[str] = mapped_column(Text)
    arch: Mapped[str] = mapped_column(Text)
    total_bytes: Mapped[int] = mapped_column(BigInteger)
    free_bytes: Mapped[int] = mapped_column(BigInteger)
    reserved_bytes: Mapped[int] = mapped_column(BigInteger, default=0)  # plans of live instances
    # As `optional_contract.DeviceUsage`; None where the backend does not tell.
    used_bytes: Mapped[int | None] = mapped_column(BigInteger)
    utilisation_percent: Mapped[int | None]
    temperature_c: Mapped[int | None]
    power_w: Mapped[float | None]
    users: Mapped[list[dict[str, Any]] | None]  # pid, name, used_bytes, instance (None: a stranger's)
    dtypes: Mapped[list[str]]
    versions: Mapped[dict[str, str]]
    unusable_because: Mapped[str | None] = mapped_column(Text)
    as_of: Mapped[datetime] = mapped_column(default=utc_now)


class Event(Base):
    """Something that happened. Names, not keys: events outlive what they tell of."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    kind: Mapped[str] = mapped_column(String(32))  # "instance" | "deployment" | "model" | "supervisor"
    deployment: Mapped[str | None] = mapped_column(String(128), index=True)
    instance: Mapped[str | None] = mapped_column(String(16), index=True)
    from_state: Mapped[str | None] = mapped_column(String(16))
    to_state: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")


@event.listens_for(Version, "before_update")
def _refuse_change(mapper: Mapper[Version], connection: object, version: Version) -> None:
    state = inspect(version)
    histories = {a.key: state.attrs[a.key].history for a in mapper.column_attrs}
    changed = [
        key
        for key, history in histories.items()
        if history.has_changes() and not (key in SET_ONCE and list(history.deleted) in ([None], []))
    ]
    if changed:
        raise ValueError(f"version {version.version} is immutable; {', '.join(changed)} cannot be changed")
