"""What `/platform/v1` answers, as typed values.

Fields that a newer server adds are ignored, fields that an answer may lack have a default, so a client
and a server that are one version apart understand each other. Times are aware and in UTC.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class SupervisorState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the supervisor lives; `as_of` is when its word was last heard.

    `problem` is why its last turn failed, such as a full disk: states may be old meanwhile.
    """

    up: bool = False
    pid: int | None = None
    as_of: datetime | None = None
    problem: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The site as a whole."""

    version: str
    supervisor: SupervisorState = SupervisorState()
    auth: str = ""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable version of a registered model."""

    version: int
    path: str
    name: str = ""
    format: str = ""
    quantization: str | None = None
    architecture: str | None = None
    size_bytes: int = 0
    context_length: int | None = None
    source: str = ""
    created_at: datetime | None = None
    licence: str | None = None
    abilities: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()  # that point at it
    digest: str | None = None  # of all its files; None until they have been read through
    is_stored: bool = False  # in the site's own store; else the files lie where they were registered


class VersionFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a version."""

    name: str
    size_bytes: int = 0
    sha256: str | None = None


class VersionDetails(Version, frozen=True, kw_only=True):
    """All that the registry knows of a version; `spec` are sizes of its architecture."""

    spec: dict[str, int] = {}
    chat_template: str | None = None
    files: tuple[VersionFile, ...] = ()
    signed_by: str | None = None  # fingerprint of the key that signed its bundle


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a file."""

    name: str
    problem: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was read through; without problems it is what was registered."""

    version: str
    digest: str | None = None
    problems: tuple[Problem, ...] = ()


class FoundFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A folder or GGUF file on the server's host that could be registered, under this name or another."""

    path: str
    name: str
    size_bytes: int = 0
    is_registered: bool = False


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """Files in the site's store of model files, or those that were removed from it."""

    num_files: int = 0
    size_bytes: int = 0


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A signed file of a version for another site."""

    path: str
    version: str
    key: str = ""  # fingerprint of the key that signed it
    size_bytes: int = 0
    num_files: int = 0


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """A model that comes from a source; `state` is running, done, failed or cancelled."""

    id: str
    source: str
    name: str | None = None
    state: str = "running"
    message: str = ""
    done_bytes: int = 0
    total_bytes: int = 0  # 0 until it is known
    version: str | None = None  # what was registered, "name:3"
    created_at: datetime | None = None
    ended_at: datetime | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A registered model."""

    name: str
    versions: tuple[Version, ...] = ()
    aliases: dict[str, int] = {}  # version by alias


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A movable name of a version."""

    model: str
    alias: str
    version: int
    updated_at: datetime | None = None


class AliasMove(
    msgspec.Struct, frozen=True, kw_only=True, rename={"from_version": "from", "to_version": "to"}
):
    """It was moved; None: it was made, or removed."""

    at: datetime
    from_version: int | None = None
    to_version: int | None = None


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """A named share of a device's memory."""

    name: str
    size_bytes: int


class InstancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance was granted."""

    parts: tuple[PlanPart, ...] = ()
    num_blocks: tuple[int, ...] = ()
    block_size: int = 0
    max_model_len: int = 0
    max_num_batched_tokens: int = 0
    host_bytes: int = 0  # of the host's memory, beside a device that has its own


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy an instance is."""

    num_running: int = 0
    num_waiting: int = 0
    num_tokens_outstanding: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0  # since its process started, as the next
    generation_tokens: int = 0


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that would make it fit, by itself; a setting, or what is to be done."""

    text: str
    setting: str | None = None
    value: str | None = None


class PlanDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device, or one device a rank, as far as a launch is concerned; bytes of the first."""

    backend: str
    device: str = ""
    fits: bool = False
    reason: str | None = None
    total_bytes: int = 0
    ours_bytes: int = 0  # claims of live instances
    others_bytes: int = 0  # in use by anybody else
    left_bytes: int = 0
    needed_bytes: int | None = None  # where it fits
    changes: tuple[PlanChange, ...] = ()  # the smallest first


class PlanSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The most that memory bandwidth allows, in tokens/s."""

    bandwidth_bytes_per_s: float
    one_stream: float
    one_stream_full: float  # at the end of its context
    all_streams_full: float  # as many sequences of full length as fit, together


class Plan(InstancePlan, frozen=True, kw_only=True):
    """What a launch would take, and whether it fits; `reason` says why not, `changes` what would help."""

    backend: str = ""
    device: str | None = None
    fits: bool = True
    reason: str | None = None
    kv_dtype: str = ""
    kv_token_bytes: int = 0
    num_kv_tokens: int = 0
    num_sequences: int = 0  # of full length at once
    speed: PlanSpeed | None = None
    changes: tuple[PlanChange, ...] = ()
    devices: tuple[PlanDevice, ...] = ()  # all that were looked at


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process with memory on a device; `instance` is None where it is none of this site's."""

    pid: int
    name: str = ""
    used_bytes: int | None = None
    instance: str | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A host of the site."""

    host: str  # as its launcher names it; empty: the supervisor's own
    devices: tuple[str, ...] = ()  # uids
    instances: tuple[str, ...] = ()  # ids of those that live


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the site (contract.DeviceInfo)."""

    uid: str
    host: str = ""  # where it is; empty: the server's own
    kind: str = ""
    index: int = 0
    name: str = ""
    arch: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    reserved_bytes: int = 0  # by the plans of live instances
    used_bytes: int | None = None  # this and what follows: None where the backend does not tell
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    dtypes: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    as_of: datetime | None = None
    unusable_because: str | None = None
    users: tuple[DeviceUser, ...] | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an instance, by what never names another."""

    pid: int
    start_time: float  # seconds since the host's boot


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process, as observed `as_of`."""

    id: str
    deployment: str
    state: str
    model: str = ""
    backend: str | None = None  # None until it is placed
    device_uids: tuple[str, ...] = ()
    reason: str | None = None
    pid: int | None = None
    attempt: int = 0
    progress: float | None = None
    plan: InstancePlan | None = None
    memory: dict[str, int] | None = None  # measured bytes by the plan's names, and "resident"
    load: Load | None = None
    created_at: datetime | None = None
    ready_at: datetime | None = None
    as_of: datetime | None = None
    notices: tuple[str, ...] = ()  # what the engine warns of though it works
    generation: int = 1  # one older than its deployment's is being replaced
    processes: tuple[Process, ...] = ()  # the engine and its ranks


class PrefixCacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has forgotten."""

    instance: str = ""
    forgotten_tokens: int = 0


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What shall run, with the instances that do."""

    name: str
    model: str
    version: int | None = None
    alias: str | None = None  # that it follows
    backend: str = "auto"
    device: str | None = None
    replicas: int = 1
    settings: dict[str, str] = {}
    desired: str = "running"
    created_at: datetime | None = None
    instances: tuple[Instance, ...] = ()
    priority: int = 0
    fallback: str | None = None
    generation: int = 1
    is_asleep: bool = False  # idle: unloaded until a request comes
    updated_at: datetime | None = None  # when somebody last changed what shall run


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One move of an instance, or one act of an operator."""

    id: int
    at: datetime
    kind: str
    deployment: str | None = None
    instance: str | None = None
    source: str | None = msgspec.field(default=None, name="from")
    target: str | None = msgspec.field(default=None, name="to")
    reason: str | None = None
