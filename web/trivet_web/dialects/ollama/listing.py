"""GET /api/tags, /api/ps, /api/version, POST /api/show: what there is, and what is loaded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from flask import Blueprint, Response

import trivet
from trivet.engine_settings import NO_VALUE
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.models import abilities_of
from trivet_web.api.request_body import read_body
from trivet_web.dialects.ollama.names import LATEST, named, variants
from trivet_web.dialects.ollama.objects import (
    Details,
    OllamaError,
    ProcessList,
    ProcessObject,
    ShowObject,
    TagList,
    TagObject,
    VersionObject,
)
from trivet_web.dialects.ollama.variants import Variant
from trivet_web.engines.routing import Deployed
from trivet_web.json_response import json_response
from trivet_web.models.model_names import ModelName
from trivet_web.models.visible_models import visible
from trivet_web.web_process import web_process

blueprint = Blueprint("ollama_listing", __name__)
NEVER = datetime(9999, 12, 31, tzinfo=UTC)  # it stays loaded
_NAMES = {"chat": None, "generate": "completion", "reasoning": "thinking", "embed": "embedding"}


class ShowRequest(msgspec.Struct, kw_only=True):
    """Body of `show`; `name` is the older word."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


@blueprint.get("/api/version")
@requires(Right.INFER)
@documented(VersionObject, failed=OllamaError)
def version() -> Response:
    """Trivet's own."""
    return json_response(VersionObject(trivet.__version__))


@blueprint.get("/api/tags")
@requires(Right.INFER)
@documented(TagList, failed=OllamaError)
def tags() -> Response:
    """Everything that a request may name: deployments, their adapters, and what was created of them."""
    process = web_process()
    table = visible(process.router.table())
    models = []
    for name, deployed in sorted(table.items()):
        adapters = process.router.served_adapters(deployed)
        models += [_tag(ModelName(name, adapter).id, deployed) for adapter in ("", *adapters)]
    for name, variant in variants(process).all():
        if variant.base in table and name not in table:
            models.append(_tag(name, table[variant.base], variant))
    return json_response(TagList(models))


@blueprint.get("/api/ps")
@requires(Right.INFER)
@documented(ProcessList, failed=OllamaError)
def ps() -> Response:
    """What is loaded: deployments of which an instance is ready."""
    router = web_process().router
    table = visible(router.table())
    return json_response(
        ProcessList([_process(d) for _, d in sorted(table.items()) if router.has_instance(d)])
    )


@blueprint.post("/api/show")
@requires(Right.INFER)
@documented(ShowObject, body=ShowRequest, failed=OllamaError)
def show() -> Response:
    """One model: files, defaults, template, what it can do. Raises: ModelNotFound, ModelFilesError."""
    body = read_body(ShowRequest)
    wanted = named(body.model or body.name)
    process = web_process()
    deployed = process.router.deployed(wanted.deployment)
    model = process.models.get(deployed.files)
    variant = wanted.variant or Variant(
        base=deployed.name, adapter=wanted.model.adapter, created_at=_modified(deployed)
    )
    defaults = {**model.sampling_defaults, **variant.options}
    architecture = deployed.facts.architecture if deployed.facts else ""
    abilities = [_NAMES.get(one, one) for one in abilities_of(deployed)]
    info: dict[str, Any] = {
        "general.architecture": architecture,
        "general.basename": deployed.name,
        f"{architecture}.context_length": deployed.max_model_len or model.context_length,
        f"{architecture}.vocab_size": model.num_tokens,
    }
    return json_response(
        ShowObject(
            modelfile=_modelfile(variant),
            parameters="\n".join(f"{name:<30} {_spelt(value)}" for name, value in defaults.items()),
            template=model.template.source if model.template else "",
            system=variant.system or "",
            details=_details(deployed, variant if wanted.variant else None),
            model_info=info,
            capabilities=[one for one in abilities if one],
            modified_at=variant.created_at,
        )
    )


def _tag(name: str, deployed: Deployed, variant: Variant | None = None) -> TagObject:
    shown = name if ":" in name else name + LATEST
    at = variant.created_at if variant else _modified(deployed)
    facts = deployed.facts
    size, digest = (facts.size_bytes, facts.fingerprint) if facts else (0, "")
    return TagObject(shown, shown, at, size, digest, _details(deployed, variant))


def _process(deployed: Deployed) -> ProcessObject:
    tag = _tag(deployed.name, deployed)
    idle_s, now = deployed.settings.get("idle_timeout_s", ""), datetime.now(UTC)
    is_forever = idle_s.lower() in NO_VALUE or float(idle_s) >= (NEVER - now).total_seconds()
    expires = NEVER if is_forever else now + timedelta(seconds=float(idle_s))
    on_device = any(row.backend not in ("", "cpu", "null") for row in deployed.serving)
    return ProcessObject(
        tag.name,
        tag.model,
        tag.size,
        tag.digest,
        tag.details,
        expires,
        tag.size if on_device else 0,
        deployed.max_model_len or 0,
    )


def _details(deployed: Deployed, variant: Variant | None) -> Details:
    facts = deployed.facts
    if facts is None:
        return Details("", "", "", [], "", "")
    family = facts.architecture
    parent = variant.base if variant else ""
    return Details(parent, facts.format, family, [family], "", facts.quantization.upper())


def _modified(deployed: Deployed) -> datetime:
    return datetime.fromtimestamp(deployed.created_s, UTC)


def _modelfile(variant: Variant) -> str:
    lines = [f"FROM {variant.base}"]
    if variant.adapter:
        lines.append(f"ADAPTER {variant.adapter}")
    if variant.system:
        lines.append(f'SYSTEM """{variant.system}"""')
    for name, value in variant.options.items():
        lines += [
            f"PARAMETER {name} {_spelt(one)}" for one in (value if isinstance(value, list) else [value])
        ]
    lines += [f"MESSAGE {one['role']} {json.dumps(one['content'])}" for one in variant.messages]
    return "\n".join(lines) + "\n"


def _spelt(value: object) -> str:
    return json.dumps(value) if isinstance(value, str | list | bool) else str(value)
