"""Files of batches: what is refused and leaves nothing, and how they are listed."""

from __future__ import annotations

import errno
import gc
import io
import warnings
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from batch_client import CHAT, line, send_file
from werkzeug.datastructures import FileStorage
from werkzeug.test import encode_multipart

from trivet_web import stored_objects
from trivet_web.api import files
from trivet_web.batch.stored_batch import Shelf

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient


def send(
    client: FlaskClient, content: bytes = b"{}\n", environ: dict[str, Any] | None = None, **fields: str
) -> Any:
    """As bytes: the test client leaves the temporary file of a large form of its own open."""
    data = {"file": FileStorage(io.BytesIO(content), "in.jsonl"), "purpose": "batch", **fields}
    boundary, body = encode_multipart(data)
    kind = f"multipart/form-data; boundary={boundary}"
    return client.post("/v1/files", data=body, content_type=kind, environ_overrides=environ or {})


def kept(site: Site) -> list[str]:
    folder = site.settings.paths.stored / "files"
    return sorted(place.name for place in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("content", "fields", "status", "param"),
    [
        (b"", {}, 400, "file"),
        (b"{}", {"purpose": "x" * 200}, 400, "purpose"),
        (b"{}", {"purpose": "x" * (512 << 10)}, 413, None),
        (b"x" * (2 << 20), {"purpose": "x" * (512 << 10)}, 413, None),
        (b"{}", {"expires_after[anchor]": "created_at"}, 400, "expires_after"),
        (b"{}", {"expires_after[seconds]": "3600"}, 400, "expires_after"),
    ],
)
def test_what_is_wrong_is_said_and_leaves_nothing(
    site: Site,
    site_client: FlaskClient,
    content: bytes,
    fields: dict[str, str],
    status: int,
    param: str | None,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = send(site_client, content, **fields)
        gc.collect()
    error = response.get_json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert len(error["message"]) < 300, "without the value"
    assert status != 413 or "fields beside the file" in error["message"]
    assert kept(site) == []


def test_a_file_has_a_largest_size(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10_000)
    response = send(site_client, b"x" * 10_001)
    assert response.status_code == 413
    assert "the file has more than 10000 bytes" in response.get_json()["error"]["message"]
    chunked = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    response = send(site_client, b"x" * 10_001, chunked)
    assert response.status_code == 413
    assert "the file has more than 10000 bytes" in response.get_json()["error"]["message"]
    assert kept(site) == []
    assert send(site_client, b"x" * 5_000).status_code == 200


def test_a_full_disk_is_said_and_leaves_nothing(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Shelf, "new_file", full)
    response = send(site_client)
    assert response.status_code == 503
    assert "No space left on device" in response.get_json()["error"]["message"]
    assert kept(site) == []


def test_the_last_of_the_disk_is_not_for_files_and_a_user_has_a_share(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(site_client, b"x" * 3000).status_code == 200
    monkeypatch.setattr(files, "MAX_OWNED_BYTES", 4000)
    response = send(site_client, b"x" * 1000)
    assert response.status_code == 413
    assert "your files have 3000 bytes, and at most 4000" in response.get_json()["error"]["message"]
    monkeypatch.undo()
    monkeypatch.setattr(stored_objects, "RESERVE_BYTES", 1 << 60)
    response = send(site_client)
    assert response.status_code == 503
    assert "of the disk would be left" in response.get_json()["error"]["message"]
    assert len(kept(site)) == 2, "the first and what describes it"


def test_a_large_file_takes_a_slot_and_a_small_one_does_not(
    site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BODY_BYTES", 10_000)
    slots = site_client.application.extensions["trivet"].slots
    taken = [slots.take() for _ in range(slots._count)]
    assert send(site_client, b"x" * 20_000).status_code == 429
    assert send(site_client).status_code == 200
    taken.pop()()
    assert send(site_client, b"x" * 20_000).status_code == 200
    assert send(site_client, b"x" * 20_000).status_code == 200, "it was given back"


def batches_made(client: FlaskClient, count: int) -> list[str]:
    body = {"input_file_id": send_file(client, line(0)).get_json()["id"], "endpoint": CHAT}
    return [client.post("/v1/batches", json=body).get_json()["id"] for _ in range(count)]


@pytest.mark.parametrize("route", ["/v1/files", "/v1/batches"])
def test_lists_come_in_pages(site_client: FlaskClient, route: str) -> None:
    if route == "/v1/files":
        ids = [send(site_client).get_json()["id"] for _ in range(5)]
    else:
        ids = batches_made(site_client, 5)
    newest_first = [one["id"] for one in site_client.get(route).get_json()["data"]]
    assert sorted(newest_first) == sorted(ids)
    first = site_client.get(route, query_string={"limit": 3}).get_json()
    assert [one["id"] for one in first["data"]] == newest_first[:3]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (
        True,
        newest_first[0],
        newest_first[2],
    )
    rest = site_client.get(route, query_string={"limit": 3, "after": first["last_id"]}).get_json()
    assert [one["id"] for one in rest["data"]] == newest_first[3:]
    assert rest["has_more"] is False
    turned = site_client.get(route, query_string={"order": "asc"}).get_json()["data"]
    assert [one["id"] for one in turned] == newest_first[::-1]
    for name, value in (("limit", "0"), ("limit", "x"), ("limit", "10001"), ("order", "up"), ("after", "x")):
        response = site_client.get(route, query_string={name: value})
        assert (response.status_code, response.get_json()["error"]["param"]) == (400, name)


def test_an_empty_list_has_no_ids(site_client: FlaskClient) -> None:
    listed = site_client.get("/v1/files").get_json()
    assert listed == {"data": [], "first_id": None, "last_id": None, "has_more": False, "object": "list"}


def test_the_file_is_the_part_of_that_name(site: Site, site_client: FlaskClient) -> None:
    wanted = b'{"custom_id": "r0"}\n'
    parts = {"other": (io.BytesIO(b"another"), "o"), "file": (io.BytesIO(wanted), "f"), "purpose": "batch"}
    made = site_client.post("/v1/files", data=parts, content_type="multipart/form-data").get_json()
    with site_client.get(f"/v1/files/{made['id']}/content") as answer:
        assert answer.data == wanted
    assert len(kept(site)) == 2, "its content and what is said of it"


def test_a_form_of_many_files_is_refused_and_leaves_none_open(site: Site, site_client: FlaskClient) -> None:
    parts = {f"f{number}": (io.BytesIO(b"x"), "f") for number in range(1000)}
    before = psutil.Process().num_fds()
    response = site_client.post("/v1/files", data=parts, content_type="multipart/form-data")
    assert response.status_code == 413
    assert "more than 16 parts" in response.get_json()["error"]["message"]
    assert psutil.Process().num_fds() < before + 12, "other threads may have opened the registry meanwhile"
    assert kept(site) == []


@pytest.mark.parametrize(
    "row", [b"\n", b"\r\n", b'{"custom_id": "a row as they are"}\n', b"x" * 65_530 + b"\n"]
)
def test_a_large_file_comes_whole_wherever_its_lines_end(
    site: Site, site_client: FlaskClient, row: bytes
) -> None:
    """A line's end may begin the form's boundary: what the parser keeps for that is no field."""
    content = row * (1 + (1 << 20) // len(row))
    made = send(site_client, content)
    assert made.status_code == 200, made.text
    with site_client.get(f"/v1/files/{made.get_json()['id']}/content") as answer:
        assert answer.data == content
