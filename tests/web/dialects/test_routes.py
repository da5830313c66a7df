"""Every route of a dialect: what it needs, and that the README tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet_web.accounts.rights import Right, right_of
from trivet_web.api.openapi import routes_of
from trivet_web.app import create_app
from trivet_web.dialects.routes import BLUEPRINTS
from trivet_web.web_process import WebProcess

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

    from trivet_web.models.served_models import ServedModel

README = (Path(__file__).parents[3] / "README.md").read_text()
NAMES = {blueprint.name for blueprint in BLUEPRINTS}
ASKING = {
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"),
    *("/generate", "/generate_stream", "/", "/v1/messages", "/v1/messages/count_tokens", "/token"),
}


def test_what_changes_something_needs_the_token(client: FlaskClient) -> None:
    """A new route is one or the other: whoever adds it has to say which."""
    for rule, method, view in routes_of(client.application):
        if rule.endpoint.partition(".")[0] not in NAMES:
            continue
        asks = method == "GET" or rule.rule in ASKING
        asks |= rule.rule in ("/api/pull", "/api/push", "/api/blobs/<digest>")  # which change nothing
        assert (right_of(view) is Right.OPERATE) is not asks, f"{method} {rule.rule}"


def test_each_is_in_the_readme(client: FlaskClient) -> None:
    for rule, method, _ in routes_of(client.application):
        if rule.endpoint.partition(".")[0] in NAMES:
            assert f"`{rule.rule}`" in README, f"{method} {rule.rule}"


def test_where_a_token_is_required_every_one_needs_it(site: Site, served_model: ServedModel) -> None:
    process = WebProcess(
        msgspec.structs.replace(site.settings, auth="required"), load_model=lambda path: served_model
    )
    site.stack.callback(process.close)
    app = create_app(process.settings, process)
    for rule, method, _ in routes_of(app):
        if rule.endpoint.partition(".")[0] in NAMES:
            path = rule.rule.replace("<", "").replace(">", "")
            response = app.test_client().open(path, method=method, json={})
            if rule.rule == "/token":  # where they log in
                assert response.status_code == 400
                continue
            is_open = rule.rule == "/v1/cluster/auth"  # where clients ask whether they need one
            assert response.status_code == (200 if is_open else 401), f"{method} {rule.rule}"
