"""What an engine holds now, asked of the engine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trivet_registry.instance_state import InstanceState as State

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient


def batch_of(site: Site, client: FlaskClient, instance: str, status: int) -> Any:
    headers = {"Authorization": f"Bearer {site.token}"}
    answer = client.get(f"/platform/v1/instances/{instance}/batch", headers=headers)
    assert answer.status_code == status, answer.text
    return answer.get_json()


def test_the_batch_of_a_ready_instance_is_told(site: Site, site_client: FlaskClient) -> None:
    engine = site.start_engine()
    view = batch_of(site, site_client, engine.instance, 200)
    assert view["max_num_seqs"] == 4
    assert view["lanes"][0]["request_id"] == "r-1"
    assert view["blocks"] == [1, 1, *[-1] * 6]
    engine.kill()
    assert batch_of(site, site_client, engine.instance, 503)["error"]["code"] == "engine_lost"


def test_an_instance_that_does_not_serve_has_no_batch(site: Site, site_client: FlaskClient) -> None:
    instance = site.add_instance(State.PLACING, State.STARTING)
    assert "starting" in batch_of(site, site_client, instance, 409)["error"]["message"]
    assert batch_of(site, site_client, "none", 404)
