"""GET /v1/models: the deployments that clients may name as `model`, for clients of all dialects."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from flask import Blueprint, Response
from msgspec import structs

from trivet.errors import ModelFilesError
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.model_objects import ModelList, ModelObject
from trivet_web.engines.routing import Deployed
from trivet_web.json_response import json_response
from trivet_web.models.model_names import ModelName, check_known, meant_by
from trivet_web.models.visible_models import visible
from trivet_web.web_process import web_process

blueprint = Blueprint("models", __name__)
_TYPES = {"generate": "LLM", "embed": "embedding", "score": "rerank"}  # Xinference's


@blueprint.get("/v1/models")
@requires(Right.INFER)
@documented(ModelList)
def list_models() -> Response:
    """All that shall run, `ready` says which answer now; behind each its adapters that do."""
    table = visible(web_process().router.table())
    found = [one for _, deployed in sorted(table.items()) for one in _objects(deployed)]
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return json_response(ModelList(found, first, last))


@blueprint.get("/v1/models/<path:name>")  # as org/model of others, which is told what exists here
@requires(Right.INFER)
@documented(ModelObject)
def get_model(name: str) -> Response:
    """Raises: ModelNotFound listing what exists."""
    meant = meant_by(name)
    deployed = check_known(meant)
    made = model_object(deployed)
    if not meant.adapter:
        return json_response(made)
    is_ready = meant.adapter in web_process().router.served_adapters(deployed)
    return json_response(_of_adapter(made, meant, is_ready))


def _objects(deployed: Deployed) -> Iterator[ModelObject]:
    base = model_object(deployed)
    yield base
    for adapter in web_process().router.served_adapters(deployed):
        yield _of_adapter(base, ModelName(deployed.name, adapter), is_ready=True)


def _of_adapter(base: ModelObject, name: ModelName, is_ready: bool) -> ModelObject:
    return structs.replace(
        base,
        id=name.id,
        display_name=name.id,
        root=name.adapter,
        parent=name.deployment,
        ready=is_ready,
    )


def model_object(deployed: Deployed) -> ModelObject:
    """As clients get it."""
    facts = deployed.facts
    return ModelObject(
        id=deployed.name,
        created=deployed.created_s,
        max_model_len=deployed.max_model_len,
        ready=web_process().router.can_serve(deployed),
        created_at=datetime.fromtimestamp(deployed.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        display_name=deployed.name,
        model_type=_TYPES[task_of(deployed)],
        model_ability=abilities_of(deployed),
        model_name=facts.name if facts else deployed.name,
        model_format=facts.format if facts else "",
        quantization=facts.quantization if facts else "",
        context_length=deployed.max_model_len or (facts.context_length if facts else None),
        replica=len(deployed.serving),
        root=facts.reference if facts else deployed.name,
    )


def task_of(deployed: Deployed) -> str:
    """What it is for: as its launch says, else as its files do."""
    task = deployed.settings.get("task", "auto")
    if task != "auto":
        return task
    if deployed.facts is not None and "rerank" in deployed.facts.name.lower():
        return "score"  # no file says so
    try:
        pools = web_process().models.get(deployed.files).pools
    except ModelFilesError:
        pools = False
    return "embed" if pools else "generate"


def abilities_of(deployed: Deployed) -> list[str]:
    """What can be asked of it, by Xinference's words; every model also makes embeddings."""
    try:
        model = web_process().models.get(deployed.files)
    except ModelFilesError:  # whoever asks it will be told
        return []
    task = task_of(deployed)
    if task != "generate":
        return [{"score": "rerank"}.get(task, task)]
    abilities = ["generate"]
    if model.template is not None:
        abilities += ["chat", "tools"]
    if model.reasoning_format is not None:
        abilities.append("reasoning")
    return [*abilities, "embed"]
