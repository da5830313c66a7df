"""POST /api/{create,copy,pull,push,blobs}, DELETE /api/delete: what is there under which name.

Nothing is downloaded or loaded: files come with `trivet models add`, engines with `trivet launch`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response

from trivet.errors import Conflict, ModelNotFound, RequestError, UnsupportedParameter
from trivet_registry.models_store import remove_model
from trivet_registry.references import find_version
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.dialects.ollama.modelfile import Modelfile, parse_modelfile
from trivet_web.dialects.ollama.names import LATEST, Named, named, variants
from trivet_web.dialects.ollama.objects import OllamaError, StatusObject
from trivet_web.dialects.ollama.options import read_options
from trivet_web.dialects.ollama.requests import ChatMessage, refuse_images
from trivet_web.dialects.ollama.variants import Variant, new_variant
from trivet_web.json_response import NDJSON, json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("ollama_managing", __name__)
ADAPTERS_BY_LAUNCH = "launch the model with `--adapter NAME=FOLDER`, and give ADAPTER NAME in the Modelfile"


class NameRequest(msgspec.Struct, kw_only=True):
    """Body of `pull`, `push` and `delete`; `name` is the older word."""

    model: str | None = None
    name: str | None = None
    insecure: bool | None = None
    stream: bool | None = None

    @property
    def asked(self) -> str:
        """Raises: RequestError."""
        name = self.model or self.name
        if not name:
            raise RequestError("model is missing; it is required", param="model")
        return name.removesuffix(LATEST)


class CopyRequest(msgspec.Struct, kw_only=True):
    """Body of `copy`."""

    source: str
    destination: str


class CreateRequest(NameRequest, kw_only=True):
    """Body of `create`: the parts of a Modelfile, or the older whole one."""

    base: str | None = msgspec.field(default=None, name="from")
    modelfile: str | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[ChatMessage] | None = None
    template: str | None = None
    license: str | list[str] | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    quantize: str | None = None
    path: str | None = None

    def parts(self) -> Modelfile:
        """Raises: RequestError, UnsupportedParameter."""
        for name, instead in (
            ("template", "the model's own chat template is used, leave it out"),
            ("files", "put the files on the server and use `trivet models add PATH`"),
            ("adapters", f"nothing is uploaded, {ADAPTERS_BY_LAUNCH}"),
            ("quantize", "weights are served as their files store them"),
            ("path", "send the Modelfile's text as modelfile"),
        ):
            if getattr(self, name):
                raise UnsupportedParameter(
                    f"{name} is given; this version does not carry it out: {instead}", param=name
                )
        made = parse_modelfile(self.modelfile) if self.modelfile else Modelfile()
        made.base = self.base or made.base
        made.system = self.system or made.system
        made.options.update(self.parameters or {})
        for index, one in enumerate(self.messages or []):
            refuse_images(one.images, f"messages[{index}].images")
            made.messages.append({"role": one.role, "content": one.content or ""})
        return made


@blueprint.post("/api/create")
@requires(Right.OPERATE)
@documented(
    StatusObject, body=CreateRequest, stream=StatusObject, stream_media_type=NDJSON, failed=OllamaError
)
def create() -> Response:
    """A name for a deployment with a system message and options. Raises: RequestError, Conflict."""
    body = read_body(CreateRequest)
    parts, name = body.parts(), body.asked
    if not parts.base:
        raise RequestError("from is missing; name a model that is deployed", param="from")
    read_options(parts.options).fields()  # what is wrong with them is told now
    base = named(parts.base)
    earlier = base.variant or new_variant(base.deployment)
    _put(
        name,
        new_variant(
            base.deployment,
            adapter=_adapter_of(base, parts.adapter),
            system=earlier.system if parts.system is None else parts.system,
            options={**earlier.options, **parts.options},
            messages=parts.messages or earlier.messages,
        ),
    )
    return _steps(body, "using existing layer", "writing manifest", "success")


@blueprint.post("/api/copy")
@requires(Right.OPERATE)
@documented(body=CopyRequest, failed=OllamaError)
def copy() -> Response:
    """A further name of a model. Raises: ModelNotFound, RequestError, Conflict."""
    body = read_body(CopyRequest)
    source = named(body.source)
    _put(
        body.destination.removesuffix(LATEST),
        source.variant or new_variant(source.deployment, adapter=source.model.adapter),
    )
    return Response(status=200)


@blueprint.delete("/api/delete")
@requires(Right.OPERATE)
@documented(body=NameRequest, failed=OllamaError)
def delete() -> Response:
    """Forget a created name, or a registered model that is not deployed. Raises: ModelNotFound, Conflict."""
    name = read_body(NameRequest).asked
    process = web_process()
    if name in process.router.table(fresh=True):
        raise Conflict(f"model {name!r} is deployed; stop it first: trivet stop {name}", param="model")
    is_variant = variants(process).get(name) is not None
    with process.database.session() as session:
        if not is_variant:
            remove_model(session, name)
        record(session, "name.remove" if is_variant else "model.remove", name)
        session.flush()
        variants(process).remove(name)  # last: what cannot be recorded is not done
    return Response(status=200)


@blueprint.post("/api/pull")
@requires(Right.READ)
@documented(StatusObject, body=NameRequest, stream=StatusObject, stream_media_type=NDJSON, failed=OllamaError)
def pull() -> Response:
    """Says that a model is there; what is not there is refused. Raises: ModelNotFound."""
    body = read_body(NameRequest)
    name = body.asked
    try:
        named(name)
    except ModelNotFound as absent:
        _require_registered(name, absent)
    return _steps(body, "pulling manifest", "success")


@blueprint.post("/api/push")
@requires(Right.READ)
@documented(StatusObject, body=NameRequest, failed=OllamaError)
def push() -> Response:
    """There is nowhere to push to. Raises: UnsupportedParameter."""
    name = read_body(NameRequest).asked
    raise UnsupportedParameter(
        f"model {name!r} cannot be pushed: this server uploads nothing; copy its files", param="model"
    )


@blueprint.route("/api/blobs/<digest>", methods=["HEAD", "POST"])
@requires(Right.READ)
@documented(StatusObject, failed=OllamaError)
def blobs(digest: str) -> Response:
    """Clients send the files of a model there before `create`. Raises: UnsupportedParameter."""
    raise UnsupportedParameter(
        f"file {digest[:80]!r} is not taken: no model is uploaded to this server; put its files there and "
        "use `trivet models add PATH`, then create from its name",
        param="digest",
    )


def _adapter_of(base: Named, wanted: str | None) -> str:
    """Name of the adapter, by its name or its folder, that engines of the deployment were launched with.

    Raises: UnsupportedParameter.
    """
    if wanted is None:
        return base.model.adapter
    router = web_process().router
    deployed = router.deployed(base.deployment)
    known = router.known_adapters(deployed)
    names = {folder: name for name, folder in deployed.adapters.items()}
    name = names.get(wanted.rstrip("/"), wanted)
    if name not in known:
        raise UnsupportedParameter(
            f"ADAPTER is {wanted[:200]!r}, and model {base.deployment!r} has "
            f"{', '.join(known) or 'none'}: {ADAPTERS_BY_LAUNCH}",
            param="modelfile",
        )
    return name


def _require_registered(name: str, absent: ModelNotFound) -> None:
    """Raises: ModelNotFound with what to do."""
    try:
        with web_process().database.reading() as session:
            find_version(session, name)
    except ModelNotFound:
        raise ModelNotFound(
            f"model {name[:200]!r} is not on this server; there: trivet launch PATH --name "
            f"{name.partition(':')[0][:80]}, or hf:ORG/NAME in place of PATH",
            param="model",
        ) from absent


def _put(name: str, variant: Variant) -> None:
    """Raises: RequestError; Conflict where a deployment has the name."""
    process = web_process()
    if name in process.router.table(fresh=True):
        raise Conflict(
            f"{name!r} is the name of a deployment; take another, or stop it: trivet stop {name}",
            param="model",
        )
    with process.database.session() as session:
        record(session, "name.create", name, after={"base": variant.base})
        session.flush()
        variants(process).put(name, variant)  # last: what cannot be recorded is not done


def _steps(body: NameRequest, *steps: str) -> Response:
    if body.stream is False:
        return json_response(StatusObject(steps[-1]))
    lines = [msgspec.json.encode(StatusObject(step)) + b"\n" for step in steps]
    return Response(b"".join(lines), mimetype=NDJSON)
