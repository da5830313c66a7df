"""The application factory."""

from __future__ import annotations

from http import HTTPStatus

from flask import Flask, Response, request

from trivet import metrics
from trivet.config import Settings
from trivet_web import error_objects, guard
from trivet_web.accounts.pages import blueprint as account_pages
from trivet_web.api import (
    batches,
    chat,
    completions,
    embeddings,
    files,
    health,
    metrics_page,
    models,
    openapi,
    responses,
    responses_stored,
    scoring,
    tokenization,
)
from trivet_web.api.management import BLUEPRINTS as MANAGEMENT
from trivet_web.batch.runner import LOCK as BATCHES_LOCK
from trivet_web.batch.runner import BatchRunner
from trivet_web.console import BLUEPRINTS as CONSOLE
from trivet_web.console.event_feed import EventFeed
from trivet_web.console.event_routes import FEED
from trivet_web.console.event_topics import topics_of
from trivet_web.dialects.routes import BLUEPRINTS as DIALECTS
from trivet_web.dialects.routes import error_form_of
from trivet_web.engines.fallback import name_fallback
from trivet_web.request_name import name_request, request_id
from trivet_web.stream_worker.handover import handover_of_request
from trivet_web.web_process import EXTENSION, WebProcess, web_process

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def create_app(settings: Settings, process: WebProcess | None = None) -> Flask:
    """The application of one web process; call it after the fork.

    Raises: ConfigError where the registry cannot be opened.
    """
    app = Flask("trivet_web", static_folder=None)  # the console serves its own files
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
    process = process or WebProcess(settings)
    app.extensions[EXTENSION] = process
    app.extensions[FEED] = process.console_feed = EventFeed(topics_of(process))

    app.before_request(name_request)
    app.after_request(_count_request)
    app.after_request(name_fallback)
    guard.register(app, process.accounts)
    error_objects.register(app, error_form_of)
    for blueprint in (
        chat.blueprint,
        completions.blueprint,
        embeddings.blueprint,
        files.blueprint,
        batches.blueprint,
        models.blueprint,
        openapi.blueprint,
        responses.blueprint,
        responses_stored.blueprint,
        scoring.blueprint,
        tokenization.blueprint,
        health.blueprint,
        metrics_page.blueprint,
        *MANAGEMENT,
        *DIALECTS,
        *CONSOLE,
        account_pages,
    ):
        app.register_blueprint(blueprint)
    guard.seal(app)
    lock = settings.paths.run / BATCHES_LOCK
    process.serve_batches(BatchRunner(app, process.shelf, lock, lambda: process.is_draining))
    return app


def _count_request(response: Response) -> Response:
    if (handover := handover_of_request()) and handover.parked:
        return response  # the answer comes later
    response.headers["X-Request-ID"] = request_id()
    if response.status_code == HTTPStatus.NO_CONTENT:
        del response.headers["Content-Type"]
    # Only words of ours: a label that clients can choose is a series in memory for each that they think of.
    route = request.url_rule.rule if request.url_rule else "unknown"
    method = request.method if request.method in _METHODS else "other"
    web_process().metrics.count(metrics.HTTP_REQUESTS, method, route, str(response.status_code))
    return response
