"""A site as a document: models, aliases, deployments, and keys without their secrets.

Versions are numbered by their place in the document, not as the site numbers them: a site that has forgotten
versions and one that is made of its document then have the same document.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from trivet.errors import ConfigError
from trivet.setting_faults import refuse_unknown

if TYPE_CHECKING:
    from trivet.client import Client, Deployment, Model
    from trivet.client.account_results import ApiKey

FORMAT = "trivet-config 1"


class VersionEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`path` of files that are used where they lie; those of the store come from `source`."""

    source: str = "local"
    path: str | None = None
    digest: str | None = None  # None: its files have not been read through


class ModelEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`aliases` point at places in `versions`, from 1."""

    versions: list[VersionEntry] = []
    aliases: dict[str, int] = {}


class DeploymentEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One that shall run."""

    model: str  # "name:alias", or "name:2", the second of the document's versions
    backend: str = "auto"
    device: str | None = None
    replicas: int = 1
    priority: int = 0
    fallback: str | None = None
    given: dict[str, str | int | float | bool] = msgspec.field(name="settings", default_factory=dict)

    def __post_init__(self) -> None:
        self.given = dict(self.settings)

    @property
    def settings(self) -> dict[str, str]:
        """As `--set` spells them; in a document they may be TOML's numbers and booleans, too."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.given.items()
        }


class KeyEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key that was not revoked, without its secret."""

    name: str
    user: str | None = None
    scopes: list[str] = []
    models: list[str] | None = None
    priority: int = 0
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    expires_at: datetime | None = None


class Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of it, in an order that does not change."""

    format: str = FORMAT
    models: dict[str, ModelEntry] = {}
    deployments: dict[str, DeploymentEntry] = {}
    keys: list[KeyEntry] = []


def read_site(client: Client) -> Document:
    """As it is now. Raises: what the client does."""
    models = {model.name: model for model in client.models.list()}
    running = [one for one in client.deployments.list() if one.desired == "running"]
    return Document(
        models={name: _model(model) for name, model in sorted(models.items())},
        deployments={one.name: _deployment(one, models) for one in sorted(running, key=lambda d: d.name)},
        keys=_keys(client),
    )


def decode(text: bytes, where: str) -> Document:
    """Raises: ConfigError naming the field."""
    try:
        given = tomllib.loads(text.decode())
        refuse_unknown(given, Document.__struct_fields__, where)
        document = msgspec.convert(given, Document)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{where} is no configuration of a site: {error}; `trivet config export` shows one"
        ) from error
    if document.format != FORMAT:
        raise ConfigError(f"{where}: format is {document.format!r}; this release reads {FORMAT!r}")
    for name, model in document.models.items():
        for alias, place in model.aliases.items():
            if not 1 <= place <= len(model.versions):
                raise ConfigError(
                    f"{where}: alias {name}:{alias} is {place}, and {len(model.versions)} versions are listed"
                )
    return document


def encode(document: Document) -> str:
    """As TOML."""
    return msgspec.toml.encode(document).decode()


def numbers(model: Model) -> list[int]:
    """The site's number of each version, by place."""
    return sorted(version.version for version in model.versions)


def _model(model: Model) -> ModelEntry:
    by_number = {version.version: version for version in model.versions}
    places = {number: place for place, number in enumerate(numbers(model), 1)}
    return ModelEntry(
        versions=[
            VersionEntry(source=v.source, path=None if v.is_stored else v.path, digest=v.digest)
            for _, v in sorted(by_number.items())
        ],
        aliases={alias: places[number] for alias, number in sorted(model.aliases.items())},
    )


def _deployment(one: Deployment, models: dict[str, Model]) -> DeploymentEntry:
    tag = one.alias
    if tag is None and one.model in models and one.version is not None:
        tag = str(numbers(models[one.model]).index(one.version) + 1)
    return DeploymentEntry(
        model=f"{one.model}:{tag}",
        backend=one.backend,
        device=one.device,
        replicas=one.replicas,
        priority=one.priority,
        fallback=one.fallback,
        given=dict(sorted(one.settings.items())),
    )


def _keys(client: Client) -> list[KeyEntry]:
    """Those that work: no site makes a key that has expired."""
    now = datetime.now(UTC)
    living = [
        key
        for key in client.keys.list(everybody=True)
        if key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
    ]
    return _sorted(map(key_entry, living))


def key_entry(key: ApiKey) -> KeyEntry:
    """As a document has it."""
    return KeyEntry(
        name=key.name,
        user=key.user,
        scopes=sorted(key.scopes),
        models=None if key.models is None else sorted(key.models),
        priority=key.priority,
        max_concurrency=key.max_concurrency,
        requests_per_minute=key.requests_per_minute,
        expires_at=key.expires_at,
    )


def _sorted(entries: Iterable[KeyEntry]) -> list[KeyEntry]:
    return sorted(entries, key=lambda entry: (entry.user or "", entry.name, msgspec.json.encode(entry)))
