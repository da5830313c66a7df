"""Which deployment a name of Ollama's form means: `name:tag`, where no tag is `latest`.

A tag is an adapter of the deployment `name` first, and then an alias or a number of the registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivet.errors import ModelNotFound, RequestError
from trivet_registry.references import find_version
from trivet_web.accounts.principal import principal_of_request
from trivet_web.dialects.ollama.variants import Variant, Variants
from trivet_web.engines.routing import Deployed
from trivet_web.models.model_names import ModelName, meant_by
from trivet_web.models.visible_models import visible
from trivet_web.web_process import WebProcess, web_process

LATEST = ":latest"


@dataclass(frozen=True, slots=True)
class Named:
    """What a request asks for, and what was said when it was created."""

    asked: str
    model: ModelName
    variant: Variant | None = None

    @property
    def deployment(self) -> str:
        return self.model.deployment


def named(name: str | None) -> Named:
    """Raises: RequestError without a name; ModelNotFound listing what there is."""
    if not name:
        raise RequestError("model is missing; it is required", param="model")
    process = web_process()
    plain = name.removesuffix(LATEST)
    table = visible(process.router.table())
    may_use, known_adapters = principal_of_request().may_use, process.router.known_adapters
    variant = None if plain in table else variants(process).get(plain)
    if variant is not None and may_use(variant.base):
        return Named(name, ModelName(variant.base, variant.adapter), variant)
    if plain in table:
        return Named(name, ModelName(plain))
    table = visible(process.router.table(fresh=True))  # it may have been launched within the last half second
    if plain in table:
        return Named(name, ModelName(plain))
    meant = meant_by(plain)
    adapters = [ModelName(one.name, adapter) for one in table.values() for adapter in known_adapters(one)]
    if meant in adapters:
        return Named(name, meant)
    deployment = _of_version(process, plain, list(table.values()))
    if deployment is not None:
        return Named(name, ModelName(deployment))
    created = [one for one, variant in variants(process).all() if may_use(variant.base)]
    known = ", ".join(sorted([*table, *(one.id for one in adapters), *created]))
    raise ModelNotFound(
        f"model {name[:200]!r} not found; there is: {known or 'none'}; launch it with "
        f"`trivet launch PATH --name {plain.partition(':')[0][:80]}`",
        param="model",
    )


def variants(process: WebProcess) -> Variants:
    """Of this site."""
    return Variants(process.settings.paths.ollama)


def _of_version(process: WebProcess, reference: str, deployed: list[Deployed]) -> str | None:
    """The deployment that follows `model:alias` of the registry, or runs this version."""
    if ":" not in reference:
        return None
    followers = [d.name for d in deployed if d.facts is not None and d.facts.followed == reference]
    if followers:
        return min(followers)
    try:
        with process.database.reading() as session:
            wanted = find_version(session, reference).reference
    except ModelNotFound:
        return None
    found = [d.name for d in deployed if d.facts is not None and d.facts.reference == wanted]
    return min(found, default=None)
