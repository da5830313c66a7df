"""POST /api/embed, and the older /api/embeddings."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from flask import Blueprint, Response

from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.embeddings import EmbeddingRequest, embed, numbers_of
from trivet_web.api.request_body import read_body
from trivet_web.api.sampling_fields import Integer
from trivet_web.dialects.ollama.lines import NS
from trivet_web.dialects.ollama.loading import loaded
from trivet_web.dialects.ollama.names import named
from trivet_web.dialects.ollama.objects import EmbeddingObject, EmbedObject, OllamaError
from trivet_web.dialects.ollama.options import read_options
from trivet_web.dialects.ollama.requests import check_keep_alive
from trivet_web.field_names import name_fields
from trivet_web.json_response import json_response

blueprint = Blueprint("ollama_embeddings", __name__)


class EmbedRequest(msgspec.Struct, kw_only=True):
    """Body of `/api/embed`. A text that is too long is cut where `truncate` says so: its start is kept."""

    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Integer | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class OldEmbedRequest(msgspec.Struct, kw_only=True):
    """Body of `/api/embeddings`."""

    model: str | None = None
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


@blueprint.post("/api/embed")
@requires(Right.INFER)
@documented(EmbedObject, body=EmbedRequest, failed=OllamaError)
def create() -> Response:
    """A vector of length 1 for each text. Raises: RequestError, Unavailable, EngineLost."""
    begun_s = time.monotonic()
    body = read_body(EmbedRequest)
    check_keep_alive(body.keep_alive)
    read_options(body.options)
    wanted = named(body.model)
    if not body.input:
        loaded(wanted, body.keep_alive)
        return json_response(EmbedObject(wanted.asked, [], 0, 0, 0))
    embedded = embed(
        EmbeddingRequest(
            model=wanted.model.id,
            input=body.input,  # type: ignore[arg-type]  # a list of one kind
            dimensions=body.dimensions,
            truncate_prompt_tokens=-1 if body.truncate else None,
        ),
        keeps_start=True,
    )
    vectors = [numbers_of(vector) for vector in embedded.vectors]
    took = int((time.monotonic() - begun_s) * NS)
    return json_response(EmbedObject(wanted.asked, vectors, took, 0, embedded.num_tokens))


@blueprint.post("/api/embeddings")
@requires(Right.INFER)
@documented(EmbeddingObject, body=OldEmbedRequest, failed=OllamaError)
def create_one() -> Response:
    """A vector for one text, as the model makes it. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(OldEmbedRequest)
    check_keep_alive(body.keep_alive)
    read_options(body.options)
    name_fields({"input": "prompt"})
    wanted = named(body.model)
    if not body.prompt:
        loaded(wanted, body.keep_alive)
        return json_response(EmbeddingObject([]))
    request = EmbeddingRequest(model=wanted.model.id, input=body.prompt, normalize=False)
    return json_response(EmbeddingObject(numbers_of(embed(request).vectors[0])))
