"""A request that a deployment cannot take, or has let wait too long, is answered by its `fallback`.

The view runs again, from the body on, with the other model in place of the one that was asked for: another
tokenizer and template, and its own `timeout` from now. The header `X-Trivet-Fallback` and the answer's
`model` name who answered. Where the fallback fails as well the client gets the first failure.
"""

from __future__ import annotations

import logging

from flask import Response, current_app, request

from trivet.errors import (
    DeadlinePassed,
    EngineLost,
    InstanceStopped,
    Overloaded,
    TrivetError,
    Unavailable,
)
from trivet_web.stream_worker.handover import HANDOVER
from trivet_web.web_process import web_process

logger = logging.getLogger(__name__)
HEADER = "X-Trivet-Fallback"
_MODELS = "trivet.models"  # in the environment: deployments that have been asked, the last one now
_CODES = {error.code for error in (DeadlinePassed, EngineLost, InstanceStopped, Overloaded, Unavailable)}


def model_of_request(name: str) -> str:
    """The deployment to ask: `name`, or the fallback whose turn it is."""
    asked: list[str] = request.environ.setdefault(_MODELS, [name])
    return asked[-1]


def answer_of_fallback(error: TrivetError) -> Response | None:
    """The first answer of the deployments that stand in, in turn; None where there is none."""
    asked: list[str] | None = request.environ.get(_MODELS)
    if asked is None or len(asked) > 1 or error.code not in _CODES or web_process().is_draining:
        return None
    # The worker has its place back: what it was left with has failed.
    request.environ.pop(HANDOVER, None)
    while (other := _fallback_of(asked[-1])) is not None and other not in asked:
        logger.info("model=%s fallback=%s code=%s", asked[-1], other, error.code)
        asked.append(other)
        try:
            view = current_app.view_functions[str(request.endpoint)]
            response = current_app.make_response(current_app.ensure_sync(view)(**(request.view_args or {})))
        except TrivetError as later:
            logger.warning("model=%s stands in and fails: %s", other, later)
            continue
        response.headers[HEADER] = other
        return response
    return None


def _fallback_of(name: str) -> str | None:
    try:
        deployed = web_process().router.table(fresh=True).get(name)
    except Unavailable:  # the registry was never read
        return None
    return None if deployed is None else deployed.fallback  # None: stopped meanwhile
