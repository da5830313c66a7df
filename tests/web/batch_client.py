"""Files and batches over Flask's test client, each answer checked with the SDK's own types."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from openai.types import Batch
from openai.types import FileObject as SdkFile

if TYPE_CHECKING:
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
