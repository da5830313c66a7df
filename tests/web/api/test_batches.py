"""Files and batches as OpenAI's SDK uses them; what a restart and a cancellation leave."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from batch_client import CHAT, line, rows, send_file, start, state

from trivet_web import stored_objects
from trivet_web.api import batches

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient


def test_answers_and_errors_come_in_files_of_their_own(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.start_engine()
    lines = [line(0), line(1, model="none"), line(2, url="/v1/embeddings"), {"custom_id": "r3"}, line(4, n=2)]
    batch_id = start(site_client, *lines)
    eventually(lambda: state(site_client, batch_id)["status"] == "completed", what="the batch has ended")
    batch = state(site_client, batch_id)
    assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
    good = rows(site_client, batch["output_file_id"])
    assert [row["custom_id"] for row in good] == ["r0", "r4"]
    assert good[0]["response"]["body"]["choices"][0]["message"]["content"] == "w0 w1 w2 "
    bad = rows(site_client, batch["error_file_id"])
    assert [row["custom_id"] for row in bad] == ["r1", "r2", "r3"]
    assert bad[0]["response"]["status_code"] == 404
    assert "endpoint" in bad[1]["error"]["message"]
    eventually(lambda: not list(site.settings.paths.stored.rglob("*.results*")), what="only files are left")
    assert site_client.get("/v1/batches").get_json()["data"][0]["id"] == batch_id


def test_a_batch_waits_for_an_engine_and_its_cancellation_keeps_what_there_is(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    batch_id = start(site_client, *map(line, range(3)))
    eventually(lambda: state(site_client, batch_id)["status"] == "in_progress", what="it has begun")
    assert site_client.post(f"/v1/batches/{batch_id}/cancel").get_json()["status"] == "cancelling"
    eventually(lambda: state(site_client, batch_id)["status"] == "cancelled", what="it has ended")
    batch = state(site_client, batch_id)
    assert batch["output_file_id"] is None
    assert [row["custom_id"] for row in rows(site_client, batch["error_file_id"])] == ["r0", "r1", "r2"]
    assert {row["error"]["code"] for row in rows(site_client, batch["error_file_id"])} == {"batch_cancelled"}
    assert batch["in_progress_at"] <= batch["cancelling_at"] <= batch["cancelled_at"]
    assert site_client.post(f"/v1/batches/{batch_id}/cancel").status_code == 409
    assert not list(site.settings.paths.stored.rglob("*.cancel"))


def test_the_next_web_process_goes_on_where_the_last_one_was(
    site: Site, open_client: Callable[..., FlaskClient], served_model: Any, eventually: Eventually
) -> None:
    site.start_engine("--step-s", "0.02")
    first = open_client(site, served_model)
    num_lines = 500  # 3 s; what is done is told once a second
    batch_id = start(first, *(line(number, max_tokens=10) for number in range(num_lines)))
    eventually(lambda: state(first, batch_id)["request_counts"]["completed"] > 20, what="some are answered")
    first.application.extensions["trivet"].close()
    (journal,) = site.settings.paths.stored.rglob("*.partial")
    num_kept = len(journal.read_bytes().splitlines()) - 1
    assert 20 < num_kept < num_lines
    second = open_client(site, served_model)
    eventually(lambda: state(second, batch_id)["status"] == "completed", within_s=60, what="it has ended")
    answered = rows(second, state(second, batch_id)["output_file_id"])
    assert [row["custom_id"] for row in answered] == [f"r{number}" for number in range(num_lines)]


def test_a_user_has_so_many_batches_that_have_not_ended(
    site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(batches, "MAX_OPEN", 2)
    first, _ = start(site_client, line(0)), start(site_client, line(0))
    file_id = send_file(site_client, line(0)).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": CHAT}
    refused = site_client.post("/v1/batches", json=body)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert "2 of your batches have not ended, and at most 2" in refused.get_json()["error"]["message"]
    site_client.post(f"/v1/batches/{first}/cancel")
    eventually(lambda: state(site_client, first)["status"] == "cancelled", what="it has ended")
    assert site_client.post("/v1/batches", json=body).status_code == 200


def test_a_batch_leaves_room_on_the_disk(site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    file_id = send_file(site_client, line(0)).get_json()["id"]
    monkeypatch.setattr(stored_objects, "RESERVE_BYTES", 1 << 60)
    refused = site_client.post("/v1/batches", json={"input_file_id": file_id, "endpoint": CHAT})
    assert refused.status_code == 503
    assert "of the disk would be left" in refused.get_json()["error"]["message"]


def test_lines_go_behind_other_requests_whatever_they_ask_for() -> None:
    from trivet_web.batch.input_file import InputLine
    from trivet_web.batch.online_site import EndpointForm

    def priority_of(**body: object) -> int:
        data = json.dumps(line(0, **body)).encode()
        return int(json.loads(EndpointForm(CHAT).request(InputLine(0, 1, data)).body)["priority"])

    assert priority_of() == 9
    assert [priority_of(priority=given) for given in (2, 9, 12, None)] == [9, 9, 12, 9]


def test_a_priority_that_is_no_number_is_its_line_s_error(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.start_engine()
    batch_id = start(site_client, line(0, priority="first"))
    eventually(lambda: state(site_client, batch_id)["status"] == "completed", what="the batch has ended")
    (row,) = rows(site_client, state(site_client, batch_id)["error_file_id"])
    assert (row["response"]["status_code"], row["response"]["body"]["error"]["param"]) == (400, "priority")


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b'{"prompt": "x"}\n', b'{"custom_id": "a"}\n{"custom_id": "a"}\n']
)
def test_a_file_that_is_no_batch_fails_with_the_reason(
    site_client: FlaskClient, eventually: Eventually, data: bytes
) -> None:
    file = site_client.post(
        "/v1/files", data={"purpose": "batch", "file": (io.BytesIO(data), "x")}
    ).get_json()
    body = {"input_file_id": file["id"], "endpoint": CHAT}
    batch_id = site_client.post("/v1/batches", json=body).get_json()["id"]
    eventually(lambda: state(site_client, batch_id)["status"] == "failed", what="it has failed")
    (fault,) = state(site_client, batch_id)["errors"]["data"]
    assert fault["message"]
    assert "/" not in fault["message"].split(":")[0], "no path of the server"


def test_files_are_listed_had_and_deleted(site_client: FlaskClient, site: Site) -> None:
    file = send_file(site_client, line(0)).get_json()
    assert site_client.get(f"/v1/files/{file['id']}").get_json() == file
    assert [one["id"] for one in site_client.get("/v1/files").get_json()["data"]] == [file["id"]]
    assert site_client.get("/v1/files?purpose=other").get_json()["data"] == []
    assert {p.stat().st_mode & 0o777 for p in (site.settings.paths.stored / "files").iterdir()} == {0o600}
    assert site_client.delete(f"/v1/files/{file['id']}").get_json()["deleted"] is True
    for path in (
        f"/v1/files/{file['id']}",
        f"/v1/files/{file['id']}/content",
        "/v1/files/..%2f..%2fregistry.db",
    ):
        assert site_client.get(path).status_code == 404
    assert not list((site.settings.paths.stored / "files").iterdir())


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"endpoint": "/v1/images", "input_file_id": "file_1"}, 400, "endpoint"),
        ({"endpoint": CHAT, "input_file_id": "file_1"}, 404, "input_file_id"),
        ({"endpoint": CHAT, "input_file_id": "file_1", "completion_window": "1h"}, 400, "completion_window"),
        ({"endpoint": CHAT}, 400, "input_file_id"),
    ],
)
def test_what_is_wrong_is_named(client: FlaskClient, body: dict[str, Any], status: int, param: str) -> None:
    response = client.post("/v1/batches", json=body)
    assert (response.status_code, response.get_json()["error"]["param"]) == (status, param)


def test_a_file_without_purpose_or_content_is_400(client: FlaskClient) -> None:
    assert send_file(client, line(0), purpose="fine-tune").get_json()["error"]["param"] == "purpose"
    response = client.post("/v1/files", data={"purpose": "batch"})
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, "file")
    assert client.post("/v1/files", data=b"\0" * 100, content_type="multipart/form-data").status_code == 400


def test_answers_wait_while_the_engine_is_full(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    engine = site.start_engine("--refuse", "429")
    batch_id = start(site_client, line(0))
    eventually(lambda: state(site_client, batch_id)["status"] == "in_progress", what="it has begun")
    engine.kill()
    site.start_engine()
    eventually(lambda: state(site_client, batch_id)["status"] == "completed", what="it has ended")
    assert msgspec.json.encode(state(site_client, batch_id)["request_counts"])
    assert state(site_client, batch_id)["request_counts"]["completed"] == 1
