"""A request that a deployment cannot take, or has let wait too long, is answered by its `fallback`.

The view runs again, from the body on, with the other model in place of the one that was asked for: another
tokenizer and template, and its own `timeout` from now. The header `X-Trivet-Fallback` and the answer's
`model` name who answered. Where the fallback fails as well the client gets the first failure.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from flask import Response, current_app, request

from trivet.errors import (
    DeadlinePassed,
    EngineLost,
    InstanceStopped,
    Overloaded,
    TrivetError,
    Unavailable,
)
from trivet_web.request_name import request_id
from trivet_web.stream_worker.handover import HANDOVER, Handover
from trivet_web.web_process import web_process

logger = logging.getLogger(__name__)
HEADER = "X-Trivet-Fallback"
_MODELS = "trivet.models"  # in the environment: deployments that have been asked, the last one now
_FIRST = "trivet.first_failure"  # likewise: why the first of them does not answer
_CODES = {error.code for error in (DeadlinePassed, EngineLost, InstanceStopped, Overloaded, Unavailable)}


def model_of_request(name: str) -> str:
    """The deployment to ask: `name`, or the fallback whose turn it is."""
    asked: list[str] = request.environ.setdefault(_MODELS, [name])
    return asked[-1]


def answer_of_fallback(error: TrivetError) -> Response | None:
    """The first answer of the deployments that stand in, in turn; None where there is none.

    It may be left to the worker, as that of the first one; then this is called again if that fails, too.
    """
    asked: list[str] | None = request.environ.get(_MODELS)
    if asked is None or web_process().is_draining:
        return None
    if len(asked) == 1 and error.code not in _CODES:
        return None
    request.environ.setdefault(_FIRST, error)
    while (other := _fallback_of(asked[-1])) is not None and other not in asked:
        logger.info("request_id=%s model=%s fallback=%s code=%s", request_id(), asked[-1], other, error.code)
        asked.append(other)
        if HANDOVER in request.environ:  # what the worker was left with has failed
            request.environ[HANDOVER] = Handover()
        try:
            view = current_app.view_functions[str(request.endpoint)]
            return current_app.make_response(current_app.ensure_sync(view)(**(request.view_args or {})))
        except TrivetError as later:
            logger.warning("request_id=%s model=%s stands in and fails: %s", request_id(), other, later)
    return None


def first_failure(error: TrivetError) -> TrivetError:
    """What a client is told of: that of the model which it asked for."""
    first: TrivetError = request.environ.get(_FIRST, error)
    return first


def name_fallback(response: Response) -> Response:
    """Say in the answer's head who stands in."""
    asked: list[str] = request.environ.get(_MODELS, [])
    if len(asked) > 1 and response.status_code < HTTPStatus.BAD_REQUEST:
        response.headers[HEADER] = asked[-1]
    return response


def _fallback_of(name: str) -> str | None:
    try:
        deployed = web_process().router.table(fresh=True).get(name)
    except Unavailable:  # the registry was never read
        return None
    return None if deployed is None else deployed.fallback  # None: stopped meanwhile
