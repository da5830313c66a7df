"""What has to be done to a site so that it is as a document says, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from trivet.commands.site_document import (
    DeploymentEntry,
    Document,
    KeyEntry,
    ModelEntry,
    VersionEntry,
    key_entry,
    numbers,
)
from trivet.errors import Conflict, RequestError

if TYPE_CHECKING:
    from trivet.client import Client, DeploymentChanges
    from trivet.client.accounts import KeyChanges

POLL_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """`run` returns what is to be told and kept, as the secret of a new key."""

    text: str
    run: Callable[[Client], str | None]


def steps(site: Document, wanted: Document, *, prunes: bool) -> list[Step]:
    """In an order in which each can be done. Nothing for a site that is as it shall be."""
    found = [
        *_of_models(site, wanted),
        *_of_deployments(site, wanted),
        *_of_keys(site, wanted),
    ]
    return [*found, *_removals(site, wanted)] if prunes else found


def _of_models(site: Document, wanted: Document) -> Iterator[Step]:
    for name, model in wanted.models.items():
        there = site.models.get(name, ModelEntry())
        for version in model.versions:
            if place_of(there, version) is None:
                yield Step(f"+ version of {name} from {version.path or version.source}", _adds(name, version))
        for alias, place in model.aliases.items():
            old = there.aliases.get(alias)
            version = model.versions[place - 1]
            if old is None or place_of(there, version) != old:
                sign = "+" if old is None else "~"
                yield Step(f"{sign} alias {name}:{alias} is version {place}", _points(name, alias, version))


def place_of(model: ModelEntry, version: VersionEntry) -> int | None:
    """Where a model has this version, from 1: by its digest, or its path where none has been computed."""
    for place, one in enumerate(model.versions, 1):
        if version.digest is not None and version.digest == one.digest:
            return place
        if version.digest is None and version.path is not None and version.path == one.path:
            return place
    return None


def _adds(name: str, version: VersionEntry) -> Callable[[Client], None]:
    def run(client: Client) -> None:
        if version.path is not None:
            made = client.with_options(timeout_s=24 * 3600.0).models.add(
                version.path, name, verify=version.digest is not None
            )
            digest = made.digest
        else:
            digest = _pulled(client, name, version.source)
        if version.digest is not None and digest != version.digest:
            raise Conflict(
                f"{version.path or version.source} has the digest {digest}, not {version.digest} as in "
                "the file; it is not the same model any more"
            )

    return run


def _pulled(client: Client, name: str, source: str) -> str | None:
    if source.startswith(("bundle:", "file:", "local")):
        raise RequestError(
            f"a version of {name} came by {source}, which cannot be asked again; first: "
            "trivet models import FILE"
        )
    pull = client.pulls.begin(source, name)
    while pull.state == "running":
        time.sleep(POLL_INTERVAL_S)
        pull = client.pulls.get(pull.id)
    if pull.version is None:
        raise RequestError(f"{source} {pull.state}: {pull.message}")
    return client.models.version(pull.version).digest


def _number(client: Client, name: str, version: VersionEntry) -> int:
    """The site's own, when all versions are there."""
    model = client.models.get(name)
    for one in model.versions:
        if one.path == version.path if version.digest is None else one.digest == version.digest:
            return one.version
    raise RequestError(f"version {version.digest or version.path} of {name} is not there")


def _points(name: str, alias: str, version: VersionEntry) -> Callable[[Client], None]:
    def run(client: Client) -> None:
        client.aliases.set(name, alias, _number(client, name, version))

    return run


def _of_deployments(site: Document, wanted: Document) -> Iterator[Step]:
    """First all that are new: a fallback has to be there before it is named."""
    before = {name: _meant(entry, site, site) for name, entry in site.deployments.items()}
    for name, entry in wanted.deployments.items():
        if name not in before:
            yield Step(f"+ deployment {name} of {entry.model}", _launches(name, entry, wanted))
            before[name] = msgspec.structs.replace(_meant(entry, wanted, site), fallback=None)
    for name, entry in wanted.deployments.items():
        old, new = before[name], _meant(entry, wanted, site)
        changed = [field for field in new.__struct_fields__ if getattr(new, field) != getattr(old, field)]
        if changed:
            text = ", ".join(_change(field, getattr(old, field), getattr(new, field)) for field in changed)
            run = _updates(name, old, entry, wanted, has_new_model="model" in changed)
            yield Step(f"~ deployment {name}: {text}", run)


def _change(field: str, old: object, new: object) -> str:
    """Of settings those that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        differ = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
        return ", ".join(_change(key, old.get(key), new.get(key)) for key in differ)
    return f"{field} {_shown(old)} to {_shown(new)}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _meant(entry: DeploymentEntry, document: Document, site: Document) -> DeploymentEntry:
    """With the version itself where `model` has its place, which is another one in another document."""
    name, _, tag = entry.model.partition(":")
    there = site.models.get(name, ModelEntry())
    for model in (document.models.get(name, ModelEntry()), there):
        if tag.isdecimal() and 1 <= int(tag) <= len(model.versions):
            version = model.versions[int(tag) - 1]
            place = place_of(there, version)
            version = version if place is None else there.versions[place - 1]
            text = f"{name} {version.digest or version.path or version.source}"
            return msgspec.structs.replace(entry, model=text)
    return entry


def _reference(client: Client, model: str, wanted: Document) -> str:
    """As the site numbers it."""
    name, _, tag = model.partition(":")
    if not tag.isdecimal():
        return model
    if name in wanted.models and 1 <= int(tag) <= len(wanted.models[name].versions):
        return f"{name}:{_number(client, name, wanted.models[name].versions[int(tag) - 1])}"
    there = numbers(client.models.get(name))
    if not 1 <= int(tag) <= len(there):
        raise RequestError(f"{model} is the version number {tag} of {name}, and there are {len(there)}")
    return f"{name}:{there[int(tag) - 1]}"


def _launches(name: str, entry: DeploymentEntry, wanted: Document) -> Callable[[Client], None]:
    """Its fallback may not be there yet: it is set afterwards."""

    def run(client: Client) -> None:
        client.deployments.create(
            _reference(client, entry.model, wanted),
            name=name,
            backend=entry.backend,
            device=entry.device,
            replicas=entry.replicas,
            settings=entry.settings,
            priority=entry.priority,
        )

    return run


def _updates(
    name: str, old: DeploymentEntry, entry: DeploymentEntry, wanted: Document, *, has_new_model: bool
) -> Callable[[Client], None]:
    def run(client: Client) -> None:
        gone: dict[str, str | None] = dict.fromkeys(old.settings.keys() - entry.settings.keys())
        changes: DeploymentChanges = {
            "backend": entry.backend,
            "device": entry.device,
            "replicas": entry.replicas,
            "priority": entry.priority,
            "fallback": entry.fallback,
            "settings": {**gone, **entry.settings},
        }
        if has_new_model:
            changes["model"] = _reference(client, entry.model, wanted)
        client.deployments.update(name, changes)

    return run


def _of_keys(site: Document, wanted: Document) -> Iterator[Step]:
    left, missing = list(site.keys), []
    for entry in wanted.keys:
        if entry in left:
            left.remove(entry)
        else:
            missing.append(entry)
    for entry in missing:
        owner = f" of {entry.user}" if entry.user else ""
        old = next((one for one in left if (one.name, one.user) == (entry.name, entry.user)), None)
        if old is None:
            yield Step(f"+ key {entry.name}{owner}, with a new secret", _creates(entry))
            continue
        left.remove(old)
        changes = {
            field: getattr(entry, field)
            for field in entry.__struct_fields__
            if getattr(entry, field) != getattr(old, field)
        }
        text = ", ".join(_change(field, getattr(old, field), value) for field, value in changes.items())
        yield Step(f"~ key {entry.name}{owner}: {text}", _changes(old, changes))


def check_owners(client: Client, site: Document, wanted: Document) -> None:
    """Before anything is done. Raises: RequestError naming a key whose user does not exist."""
    new = [entry for entry in wanted.keys if entry.user is not None and entry not in site.keys]
    known = {user.name for user in client.users.list()} if new else set()
    for entry in new:
        if entry.user not in known:
            raise RequestError(
                f"key {entry.name} is of the user {entry.user}, who does not exist here; first: "
                f"trivet users add {entry.user}"
            )


def _changes(old: KeyEntry, changes: dict[str, Any]) -> Callable[[Client], None]:
    def run(client: Client) -> None:
        for key in client.keys.list(everybody=True):
            if key.revoked_at is None and key_entry(key) == old:
                client.keys.update(key.id, cast("KeyChanges", changes))
                return
        raise Conflict(f"key {old.name} was changed meanwhile; look at the difference again")

    return run


def _creates(entry: KeyEntry) -> Callable[[Client], str]:
    def run(client: Client) -> str:
        made = client.keys.create(
            entry.name,
            scopes=entry.scopes,
            models=entry.models,
            priority=entry.priority,
            max_concurrency=entry.max_concurrency,
            requests_per_minute=entry.requests_per_minute,
            expires_at=entry.expires_at,
            user=entry.user,
        )
        return f"key {made.name}: {made.key}"

    return run


def _removals(site: Document, wanted: Document) -> Iterator[Step]:
    """Keys stay: to revoke one is an act of its own."""
    for name in site.deployments.keys() - wanted.deployments.keys():
        yield Step(f"- deployment {name} is stopped", lambda client, name=name: client.deployments.stop(name))  # type: ignore[misc]
    for name, model in site.models.items():
        kept = wanted.models.get(name, ModelEntry())
        for alias in model.aliases.keys() - kept.aliases.keys():
            yield Step(
                f"- alias {name}:{alias}",
                lambda client, name=name, alias=alias: client.aliases.remove(name, alias),  # type: ignore[misc]
            )
