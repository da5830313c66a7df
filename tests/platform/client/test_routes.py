"""The client has a call for every route that is its own, with every field, and for none that is not there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from flask import Flask
from werkzeug.routing import Rule

from trivet.client import ChatCompletion, Client
from trivet.client.calls import Call, Group, StreamCall, call, stream
from trivet.config import load_settings
from trivet_web.api.documented import Operation, operation_of
from trivet_web.api.openapi import routes_of
from trivet_web.app import create_app
from trivet_web.web_process import EXTENSION

# What others' clients speak (dialects/) shares the prefix.
FOREIGN = {
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/models"),
    ("DELETE", "/v1/models/<model_uid>"),
    ("POST", "/v1/responses/<response_id>/cancel"),  # always refused
    ("GET", "/v1/cluster/auth"),
    ("GET", "/v1/model_registrations/<model_type>"),
    ("POST", "/v1/model_registrations/<model_type>"),
    ("GET", "/v1/model_registrations/<model_type>/<model_name>"),
    ("DELETE", "/v1/model_registrations/<model_type>/<model_name>"),
}
OWN = ("/platform/v1/", "/v1/", "/tokenize", "/detokenize", "/metrics")
# Constants; of a list's page what its items tell; `reasoning` by its older name.
LEFT_OUT = {"object", "has_more", "first_id", "last_id", "reasoning_content"}
ALWAYS_EMPTY = (type(None), list[None], list[None] | msgspec.UnsetType)  # of OpenAI's shape only
VALUES = {"file": b"x", "changes": {}, "messages": [], "documents": ["x"], "tokens": [1], "key_id": 1}
Made = Call[Any] | StreamCall[Any]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    made = create_app(load_settings({"home": str(tmp_path_factory.mktemp("home"))}, {}))
    yield made
    made.extensions[EXTENSION].close()


def groups(group: Group[Any]) -> Iterator[Group[Any]]:
    yield group
    for member in vars(group).values():
        if isinstance(member, Group):
            yield from groups(member)


def calls() -> Iterator[tuple[str, Callable[..., Any], Made]]:
    """Name, the method as it is written, and what it makes of plain arguments: all of a client."""
    with Client("http://127.0.0.1:1", "key") as client:
        for group in groups(client):
            for name in dir(type(group)):
                found = inspect.getattr_static(type(group), name)
                if isinstance(found, call | stream):
                    parameters = list(inspect.signature(found.make).parameters.values())[1:]
                    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
                    arguments = {p.name: VALUES.get(p.name, "x") for p in required}
                    made = found.make(group, **arguments)
                    yield f"{type(group).__name__}.{name}", found.make, made


CALLS = list(calls())


def rule_of(app: Flask, made: Made) -> tuple[str, str]:
    adapter = app.url_map.bind("localhost")
    rule, _ = adapter.match(made.path, method=made.method, return_rule=True)
    assert isinstance(rule, Rule)
    return made.method, rule.rule


def asked(app: Flask) -> dict[tuple[str, str], list[tuple[str, Callable[..., Any], Made]]]:
    by_route: dict[tuple[str, str], list[tuple[str, Callable[..., Any], Made]]] = {}
    for name, make, made in CALLS:
        by_route.setdefault(rule_of(app, made), []).append((name, make, made))
    return by_route


def operations(app: Flask) -> dict[tuple[str, str], Operation]:
    found = {}
    for rule, method, view in routes_of(app):
        operation = operation_of(view)
        if rule.rule.startswith(OWN) and (method, rule.rule) not in FOREIGN:
            assert operation is not None
            found[method, rule.rule] = operation
    return found


def test_every_route_of_the_platform_has_a_call(app: Flask) -> None:
    missing = set(operations(app)) - set(asked(app))
    assert not missing


def test_what_is_left_to_others_is_there(app: Flask) -> None:
    assert {(method, rule.rule) for rule, method, _ in routes_of(app)} >= FOREIGN


def test_every_query_of_a_route_can_be_asked(app: Flask) -> None:
    by_route = asked(app)
    for route, operation in operations(app).items():
        names = {name for _, _, made in by_route[route] for name in made.query}
        assert set(operation.query) <= names, route


def test_every_field_of_a_body_can_be_given(app: Flask) -> None:
    by_route = asked(app)
    for route, operation in operations(app).items():
        if operation.body is None or operation.body_media_type != "application/json":
            continue
        known = {"stream"}
        for _, make, made in by_route[route]:
            known |= set(made.body or ()) | set(inspect.signature(make).parameters)
            known |= set(fields_of(make))
        if route == ("POST", "/tokenize"):
            known.add("messages")  # in place of the prompt, where it is no text
        if route == ("POST", "/v1/score"):
            known |= {"queries", "documents", "data_1", "data_2"}  # other names of text_1 and text_2
        assert names_of(operation.body) <= known, route


def test_no_field_is_offered_that_the_server_does_not_read(app: Flask) -> None:
    all_operations = operations(app)
    for route, made_of in asked(app).items():
        body = all_operations[route].body
        for name, make, _ in made_of:
            assert body is None or set(fields_of(make)) <= names_of(body), name


def names_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def fields_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The optional fields of its TypedDict: `**fields: Unpack[ChatFields]`, or that of a PATCH."""
    hints = get_type_hints(make)
    if "changes" in hints:
        return get_type_hints(hints["changes"])
    return get_type_hints(get_args(hints["fields"])[0]) if "fields" in hints else {}


def test_every_field_of_an_answer_is_typed(app: Flask) -> None:
    all_operations = operations(app)
    for route, made_of in asked(app).items():
        operation = all_operations[route]
        for name, _, made in made_of:
            theirs = operation.returns if isinstance(made, Call) else operation.stream
            ours = made.answer if isinstance(made, Call) else made.item
            if theirs is not None and ours is not object:
                wanted = {path for path in paths(theirs) if path.split(".")[-1] not in LEFT_OUT}
                assert wanted <= paths(ours), name


def paths(kind: Any, prefix: str = "") -> set[str]:
    """Names of all fields inside a type, with dots; those of the structs of a union together."""
    if is_struct(kind) or is_struct(get_origin(kind)):
        found = set()
        tag = getattr(kind, "__struct_config__", None)
        if tag is not None and tag.tag_field:
            found.add(prefix + tag.tag_field)
        for field in msgspec.structs.fields(kind):
            name = prefix + field.encode_name
            if field.type not in ALWAYS_EMPTY:
                found |= {name} | paths(field.type, name + ".")
        return found
    return set().union(*(paths(part, prefix) for part in get_args(kind) if part is not Ellipsis))


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def test_the_walk_reaches_what_is_nested() -> None:
    assert "choices.message.tool_calls.function.name" in paths(ChatCompletion)
    assert "choices.message.tool_calls.function.nama" not in paths(ChatCompletion)
