"""GET /openapi.json: every route, from the structs that decode its requests and encode its answers."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from flask import Blueprint, Flask, Response, current_app
from werkzeug.routing import Rule

import trivet
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import EVENTS, JSON, Operation, documented, operation_of
from trivet_web.error_objects import ErrorBody

blueprint = Blueprint("openapi", __name__)
_MADE = "trivet.openapi"  # of the application: the document, encoded
_making = threading.Lock()
_PLACE = re.compile(r"<(?:[a-z]+:)?(\w+)>")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_KINDS = {int: "integer", bool: "boolean", float: "number", str: "string"}
Document = dict[str, Any]


@blueprint.get("/openapi.json")
@requires(Right.NOTHING)
@documented(dict[str, Any])
def openapi() -> Response:
    """This API, as OpenAPI 3.1."""
    made = current_app.extensions
    with _making:  # once: it takes a fifth of a second, and anybody may ask
        if _MADE not in made:
            made[_MADE] = msgspec.json.encode(document_of(current_app))
    return Response(made[_MADE], mimetype=JSON)


def routes_of(app: Flask) -> Iterator[tuple[Rule, str, Callable[..., Any]]]:
    """Rule, method and view of each route."""
    for rule in sorted(app.url_map.iter_rules(), key=lambda one: one.rule):
        for method in _METHODS:
            if method in (rule.methods or ()):
                yield rule, method, app.view_functions[rule.endpoint]


def document_of(app: Flask) -> Document:
    """The whole document."""
    routes = [
        (rule, method, view, operation)
        for rule, method, view in routes_of(app)
        if (operation := operation_of(view)) is not None
    ]
    types = [kind for *_, one in routes for kind in _types_of(one)]
    used = [*dict.fromkeys([ErrorBody, *types])]
    schemas, components = msgspec.json.schema_components(used, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(used, schemas, strict=True))
    paths: dict[str, Document] = {}
    for rule, method, view, operation in routes:
        path = _PLACE.sub(r"{\1}", rule.rule)
        paths.setdefault(path, {})[method.lower()] = _operation(rule, method, view, operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trivet", "version": trivet.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _types_of(operation: Operation) -> list[Any]:
    kinds = (operation.body, operation.returns, operation.stream, operation.failed)
    return [kind for kind in kinds if kind is not None]


def _operation(
    rule: Rule, method: str, view: Callable[..., Any], operation: Operation, schemas: dict[Any, Any]
) -> Document:
    summary = inspect.cleandoc(view.__doc__ or "").partition("Raises:")[0]
    described: Document = {
        "operationId": f"{method.lower()}_{re.sub(r'[^A-Za-z0-9]+', '_', rule.rule).strip('_') or 'root'}",
        "summary": " ".join(summary.split()),
        "tags": [rule.endpoint.partition(".")[0]],
        "responses": _responses(operation, schemas),
    }
    if parameters := _parameters(rule, operation):
        described["parameters"] = parameters
    if operation.body is not None:
        content = {operation.body_media_type: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, schemas: dict[Any, Any]) -> Document:
    schema = {} if operation.returns is None else schemas[operation.returns]
    content: Document = {operation.media_type: {"schema": schema}}
    if operation.stream is not None:
        item = schemas[operation.stream]
        if operation.stream_media_type == EVENTS:  # an item is then the event, of which this is the data
            data = {"type": "string", "contentMediaType": JSON, "contentSchema": item}
            item = {"type": "object", "properties": {"data": data, "event": {"type": "string"}}}
        content[operation.stream_media_type] = {"schema": {"type": "string"}, "itemSchema": item}
    if operation.other_media_type is not None:
        content[operation.other_media_type] = {"schema": {"type": "string"}}
    failed = {JSON: {"schema": schemas[operation.failed or ErrorBody]}}
    if operation.failed_media_type != JSON:
        failed[operation.failed_media_type] = {"schema": {"type": "string"}}
    done: Document = {"description": HTTPStatus(operation.status).phrase}
    if operation.status != HTTPStatus.NO_CONTENT:
        done["content"] = content
    return {
        str(operation.status): done,
        "4XX": {"description": "The request is at fault; the message says how", "content": failed},
        "5XX": {"description": "It cannot be served now", "content": failed},
    }


def _parameters(rule: Rule, operation: Operation) -> list[Document]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PLACE.findall(rule.rule)
    ]
    asked = [
        {"name": name, "in": "query", "required": False, "schema": {"type": _KINDS[kind]}}
        for name, kind in operation.query.items()
    ]
    return named + asked
