"""POST /generate, /generate_stream and /, GET /info."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, request

import trivet
from trivet.sampling_params import MAX_STOP_STRINGS
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.sse import stream_response
from trivet_web.api.completions import begun
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.api.tokenization import target_of
from trivet_web.api.whole_answer import whole_response
from trivet_web.dialects.tgi.answer import TgiAnswer, TokenEvents
from trivet_web.dialects.tgi.objects import GenerateObject, InfoObject, StreamObject, TgiError
from trivet_web.dialects.tgi.request import NAMES, GenerateRequest, Parameters
from trivet_web.field_names import name_fields
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("tgi", __name__)
MODEL = {"model": str}  # ours: its clients have no other place for it


@blueprint.post("/generate")
@requires(Right.INFER)
@documented(GenerateObject, body=GenerateRequest, query=MODEL, failed=TgiError)
def generate() -> Response:
    """One text, whole. Raises: RequestError, Unavailable, EngineLost."""
    return _answered(read_body(GenerateRequest), is_streamed=False)


@blueprint.post("/generate_stream")
@requires(Right.INFER)
@documented(body=GenerateRequest, stream=StreamObject, query=MODEL, failed=TgiError)
def generate_stream() -> Response:
    """One text, an event a token. Raises: RequestError, Unavailable, EngineLost."""
    return _answered(read_body(GenerateRequest), is_streamed=True)


@blueprint.post("/")
@requires(Right.INFER)
@documented(list[GenerateObject], body=GenerateRequest, stream=StreamObject, query=MODEL, failed=TgiError)
def generate_either() -> Response:
    """What clients of hosted endpoints ask: a list of one, or with `stream` events. Raises: as `generate`."""
    body = read_body(GenerateRequest)
    return _answered(body, is_streamed=bool(body.stream), shown=lambda answer: json_response([answer]))


@blueprint.get("/info")
@requires(Right.INFER)
@documented(InfoObject, query=MODEL, failed=TgiError)
def info() -> Response:
    """The model that is served, or with `?model=` one of several. Raises: RequestError, ModelNotFound."""
    target = target_of(request.args.get("model"))
    facts = target.deployed.facts
    return json_response(
        InfoObject(
            model_id=target.id,
            model_sha=facts.fingerprint if facts else None,
            model_pipeline_tag="text-generation",
            max_concurrent_requests=web_process().settings.web_threads,
            max_best_of=1,
            max_stop_sequences=MAX_STOP_STRINGS,
            max_input_tokens=target.max_model_len - 1,
            max_total_tokens=target.max_model_len,
            validation_workers=1,
            max_client_batch_size=1,
            router="trivet",
            version=trivet.__version__,
        )
    )


def _answered(
    body: GenerateRequest,
    *,
    is_streamed: bool,
    shown: Callable[[GenerateObject], Response] = json_response,
) -> Response:
    """A stream, or the whole answer as it is `shown`. Raises: RequestError, Unavailable, EngineLost."""
    name = target_of(body.model or request.args.get("model")).id
    asked = body.parameters or Parameters()
    completion = body.completion(name, is_streamed=is_streamed)
    name_fields(NAMES)
    with begun(completion, "gen") as (exchange, form):
        answer = TgiAnswer(exchange, form, body.inputs, asked)
        if is_streamed:
            return stream_response(exchange, TokenEvents(answer))
        return whole_response(exchange, lambda done: shown(answer.whole(done[0])))
