"""Files and batches over Flask's test client, each answer checked with the SDK's own types."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openai.types import Batch
from openai.types import FileObject as SdkFile

from trivet_web.batch.stored_batch import BatchObject, Shelf
from trivet_web.stored_objects import new_id

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

CHAT = "/v1/chat/completions"


def line(number: int, url: str = CHAT, **body: object) -> dict[str, Any]:
    asked = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": asked}


def send_file(client: FlaskClient, *lines: object, purpose: str = "batch") -> Any:
    data = "".join(json.dumps(one) + "\n" for one in lines).encode()
    return client.post("/v1/files", data={"purpose": purpose, "file": (io.BytesIO(data), "in.jsonl")})


def start(client: FlaskClient, *lines: object) -> str:
    file = send_file(client, *lines).get_json()
    SdkFile.model_validate(file)
    response = client.post(
        "/v1/batches", json={"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    )
    assert response.status_code == 200, response.data
    Batch.model_validate(response.get_json())
    return str(response.get_json()["id"])


def state(client: FlaskClient, batch_id: str) -> dict[str, Any]:
    batch = client.get(f"/v1/batches/{batch_id}").get_json()
    Batch.model_validate(batch)
    return batch


def rows(client: FlaskClient, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    with client.get(f"/v1/files/{file_id}/content") as response:
        return [json.loads(row) for row in response.data.decode().splitlines()]


def has_ended(client: FlaskClient, batch_id: str, status: str = "completed") -> Callable[[], bool]:
    return lambda: state(client, batch_id)["status"] == status


def store_batch(site: Site, client: FlaskClient, *lines: object, expires_in_s: float = 3600) -> str:
    """As the API does it, but without a word to the runner."""
    shelf, now_s = Shelf.of(site.settings), int(time.time())
    batch = BatchObject(
        id=new_id("batch"),
        endpoint=CHAT,
        input_file_id=send_file(client, *lines).get_json()["id"],
        completion_window="24h",
        status="validating",
        created_at=now_s,
        expires_at=int(now_s + expires_in_s),
    )
    shelf.batches.put(batch.id, batch)
    return batch.id
