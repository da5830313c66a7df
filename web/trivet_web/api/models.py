"""GET /v1/models: the deployments that clients may name as `model`, for clients of all dialects."""

from __future__ import annotations

from datetime import UTC, datetime

from flask import Blueprint, Response

from trivet.errors import ModelFilesError
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.model_objects import ModelList, ModelObject
from trivet_web.engines.routing import Deployed
from trivet_web.json_response import json_response
from trivet_web.models.visible_models import check_visible, visible
from trivet_web.web_process import web_process

blueprint = Blueprint("models", __name__)
_TYPES = {"generate": "LLM", "embed": "embedding", "score": "rerank"}  # Xinference's


@blueprint.get("/v1/models")
@requires(Right.INFER)
@documented(ModelList)
def list_models() -> Response:
    """All that shall run; `ready` says which answer now."""
    table = visible(web_process().router.table())
    names = sorted(table)
    first, last = (names[0], names[-1]) if names else (None, None)
    return json_response(ModelList([model_object(table[name]) for name in names], first, last))


@blueprint.get("/v1/models/<path:name>")  # as org/model of others, which is told what exists here
@requires(Right.INFER)
@documented(ModelObject)
def get_model(name: str) -> Response:
    """Raises: ModelNotFound listing what exists."""
    check_visible(name)
    return json_response(model_object(web_process().router.deployed(name)))


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
