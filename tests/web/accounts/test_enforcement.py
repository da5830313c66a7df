"""What a key may use, how much of it, and what is counted."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet.config import PriceSettings
from trivet.demo_model import find_demo_model
from trivet_registry.tables import utc_now
from trivet_registry.usage_store import list_usage
from trivet_registry.users_store import create_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Accounts
    from flask.testing import FlaskClient

USAGE = "/platform/v1/usage"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def asks(model: str) -> list[tuple[str, dict[str, Any]]]:
    """Every way to use a model."""
    return [
        ("/v1/chat/completions", {"model": model, **CHAT}),
        ("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"model": model, "input": "a", "max_output_tokens": 2}),
        ("/v1/embeddings", {"model": model, "input": "a"}),
        ("/v1/score", {"model": model, "text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"model": model, "query": "a", "documents": ["b"]}),
        ("/v1/messages", {"model": model, **CHAT}),
        ("/v1/messages/count_tokens", {"model": model, "messages": CHAT["messages"]}),
        ("/tokenize", {"model": model, "prompt": "a"}),
        ("/detokenize", {"model": model, "tokens": [1]}),
        ("/api/chat", {"model": model, "messages": CHAT["messages"], "stream": False}),
        ("/api/generate", {"model": model, "prompt": "a", "stream": False}),
        ("/api/embed", {"model": model, "input": "a"}),
        ("/api/show", {"model": model}),
        (f"/generate?model={model}", {"inputs": "a"}),
    ]


@pytest.fixture
def served(accounts: Accounts) -> Accounts:
    accounts.site.start_engine()
    accounts.site.deploy("secret")
    accounts.site.start_engine(name="secret")
    return accounts


def chat(client: FlaskClient, model: str = "demo", **fields: Any) -> Any:
    return client.post("/v1/chat/completions", json={"model": model, **CHAT, **fields})


def usage_of(accounts: Accounts) -> dict[str, Any]:
    """Sums that have been written, by model."""
    found: dict[str, Any] = {}
    today = utc_now().date()
    with accounts.site.database.reading() as session:
        for row in list_usage(session, today, today):
            found[row.model] = row
    return found


# ---- models --------------------------------------------------------------------------------------


def test_a_model_that_a_key_may_not_use_is_as_one_that_does_not_exist(served: Accounts) -> None:
    key = served.with_key("user", models=["demo"])
    key.environ_base["HTTP_X_REQUEST_ID"] = "the-same"
    for (path, body), (other_path, other_body) in zip(asks("secret"), asks("nothere"), strict=True):
        hidden, absent = key.post(path, json=body), key.post(other_path, json=other_body)
        assert (hidden.status_code, path) == (404, path)
        assert hidden.status_code == absent.status_code
        assert hidden.text.replace("secret", "X") == absent.text.replace("nothere", "X"), path
    assert key.get("/v1/models/secret").status_code == 404
    for path in ("/v1/models", "/api/tags", "/api/ps"):
        listed = key.get(path).text
        assert "demo" in listed
        assert "secret" not in listed, path
    assert chat(key).status_code == 200
    assert chat(served.with_key("user"), "secret").status_code == 200


def test_without_a_name_a_key_is_answered_by_what_it_may_use(served: Accounts) -> None:
    key = served.with_key("user", models=["secret"])  # behind `demo`, which is of the same model
    assert chat(key, "secret").status_code == 200
    assert key.post("/tokenize", json={"prompt": "Hello"}).status_code == 200
    assert key.get("/tokenizer_info").status_code == 200


def test_what_a_key_may_not_use_shows_by_no_other_name(served: Accounts) -> None:
    admin = served.with_token()
    variant = {"model": "pet", "from": "secret", "system": "a hidden prompt"}
    assert admin.post("/api/create", json=variant | {"stream": False}).status_code == 200
    assert served.with_key("user").post("/api/show", json={"model": "pet"}).get_json()["system"]
    key = served.with_key("user", models=["demo"])
    for path in ("/api/show", "/api/chat"):
        hidden = key.post(path, json={"model": "pet", "messages": []})
        assert hidden.status_code == 404, path
        assert "a hidden prompt" not in hidden.text
    assert "pet" not in key.post("/api/show", json={"model": "zzz"}).text


def test_a_key_for_some_models_sees_no_other_registration_and_nobody_without_the_right_a_path(
    served: Accounts,
) -> None:
    admin, place = served.with_token(), "/v1/model_registrations/LLM"
    body = {"path": str(find_demo_model()), "name": "unseen", "verify": False}
    assert admin.post("/platform/v1/models", json=body).status_code == 201
    key, user = served.with_key("user", models=["demo"]), served.with_key("user")
    names = [model["model_name"] for model in admin.get(place).get_json()]
    assert "unseen" in names
    assert len(names) > 1
    assert [model["model_name"] for model in key.get(place).get_json()] == [n for n in names if n != "unseen"]
    missing = key.get(f"{place}/unseen")
    assert (missing.status_code, "unseen" in missing.text.replace("'unseen'", "")) == (404, False)
    assert user.get(f"{place}/unseen").get_json()["model_specs"][0]["model_uri"] == ""
    shown = admin.get(f"{place}/unseen").get_json()["model_specs"][0]["model_uri"]
    assert shown == f"file://{find_demo_model()}"


def test_a_fallback_is_for_who_may_use_it(served: Accounts) -> None:
    admin = served.log_in("admin")
    body = {"model": "smollm2", "name": "full", "backend": "null", "fallback": "secret"}
    assert admin.post("/platform/v1/deployments", json=body).status_code == 201
    assert chat(served.with_key("user"), "full").headers["X-Trivet-Fallback"] == "secret"
    refused = chat(served.with_key("user", models=["full", "demo"]), "full")
    assert refused.status_code == 503
    assert "secret" not in refused.text


# ---- limits --------------------------------------------------------------------------------------


def test_requests_a_minute_are_counted_over_all_processes(served: Accounts) -> None:
    key, other = served.key("user", requests_per_minute=3), served.open_again()
    header = {"Authorization": f"Bearer {key}"}
    clients = [served.as_nobody(), other]
    statuses = [clients[n % 2].get("/v1/models", headers=header).status_code for n in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = other.post("/v1/chat/completions", json={"model": "demo", **CHAT}, headers=header)
    assert refused.get_json()["error"]["type"] == "rate_limit_error"
    assert 0 < int(refused.headers["Retry-After"]) <= 20


def test_requests_at_once_are_limited_until_one_has_ended(served: Accounts) -> None:
    key = served.with_key("user", max_concurrency=1)
    stream = key.post("/v1/chat/completions", json={"model": "demo", **CHAT, "stream": True}, buffered=False)
    chunks = iter(stream.response)
    next(chunks)
    refused = chat(key)
    assert refused.status_code == 429
    assert "as it may have (1)" in refused.get_json()["error"]["message"]
    assert chat(served.with_key("user")).status_code == 200
    for _ in chunks:
        pass
    stream.close()
    for _ in range(3):
        assert chat(key).status_code == 200


def test_a_request_that_fails_gives_its_place_back(served: Accounts) -> None:
    key = served.with_key("user", max_concurrency=1)
    for _ in range(3):
        assert chat(key, max_tokens=10_000_000).status_code == 400
        assert chat(key, "nothere").status_code == 404
    assert chat(key).status_code == 200


@pytest.mark.parametrize(("asked", "sent"), [(None, 5), (0, 5), (5, 5), (7, 7)])
def test_a_key_asks_for_no_better_priority_than_its_own(
    served: Accounts, monkeypatch: pytest.MonkeyPatch, asked: int | None, sent: int
) -> None:
    relay, seen = served.app.extensions["trivet"].relay, []
    submit = relay.submit

    def watch(instance_id: str, request: Any, *rest: Any) -> None:
        seen.append(request.priority)
        submit(instance_id, request, *rest)

    monkeypatch.setattr(relay, "submit", watch)
    key = served.with_key("user", priority=5)
    fields = {} if asked is None else {"priority": asked}
    assert chat(key, **fields).status_code == 200
    body = {"model": "demo", "prompt": "a", "max_tokens": 2, **fields}
    assert key.post("/v1/completions", json=body).status_code == 200
    assert seen == [sent, sent]


# ---- usage ---------------------------------------------------------------------------------------


def test_tokens_are_counted_for_key_user_and_model(served: Accounts, eventually: Callable[..., None]) -> None:
    key = served.with_key("user")
    answers = [chat(key).get_json()["usage"] for _ in range(3)]
    answers.append(chat(key, n=2).get_json()["usage"])
    with chat(key, stream=True, stream_options={"include_usage": True}) as streamed:
        lines = streamed.text.split("\n\n")
    answers.append(json.loads(lines[-3].removeprefix("data: "))["usage"])
    eventually(lambda: "demo" in usage_of(served) and usage_of(served)["demo"].requests == 5)
    row = usage_of(served)["demo"]
    assert row.prompt_tokens == sum(one["prompt_tokens"] for one in answers)
    assert row.completion_tokens == sum(one["completion_tokens"] for one in answers)
    cached = sum(one["prompt_tokens_details"]["cached_tokens"] for one in answers)
    assert row.cached_tokens == cached
    (shown,) = served.log_in("user").get(USAGE).get_json()["data"]
    assert (shown["user"], shown["requests"], shown["cost"]) == ("user", 5, None)
    assert shown["key"].endswith(" test")
    assert served.log_in("viewer").get(f"{USAGE}?all=1").get_json()["data"] == [], "others' is not theirs"
    assert len(served.log_in("admin").get(f"{USAGE}?all=1").get_json()["data"]) == 1


def test_no_request_writes_to_the_registry_and_a_drain_writes_what_is_left(
    served: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = served.app.extensions["trivet"]
    key = served.with_key("user", models=["demo"], max_concurrency=50)
    chat(key)
    monkeypatch.setattr("trivet_web.accounts.usage_counter.FLUSH_S", 3600)
    process.usage.flush()
    before = usage_of(served)["demo"].requests
    writes: list[str] = []
    from sqlalchemy import event

    event.listen(
        process.database.engine,
        "before_cursor_execute",
        lambda conn, cursor, statement, *rest: (
            writes.append(statement)
            if not statement.lstrip().upper().startswith(("SELECT", "BEGIN", "PRAGMA"))
            else None
        ),
    )
    for _ in range(5):
        chat(key)
    assert [statement for statement in writes if "usage" not in statement] == []
    process.close()
    assert usage_of(served)["demo"].requests == before + 5


def test_usage_waits_while_the_registry_cannot_be_written(
    served: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    process = served.app.extensions["trivet"]
    counter = process.usage
    key = served.with_key("user")

    def fail(*_: object) -> None:
        raise OperationalError("insert", {}, Exception("disk full"))

    with monkeypatch.context() as patched:
        patched.setattr("trivet_web.accounts.usage_counter.add_usage", fail)
        chat(key)
        counter.flush()
        chat(key)
        counter.flush()
    counter.flush()
    assert usage_of(served)["demo"].requests == 2


def test_cost_is_by_the_configured_prices(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    from trivet_registry.usage_store import Tokens, UsageKey, add_usage

    prices = {"demo": PriceSettings(prompt=2.0, cached=0.5, completion=10.0), "*": PriceSettings(prompt=1.0)}
    settings = msgspec.structs.replace(accounts.site.settings, price=prices, currency="EUR")
    extension = accounts.app.extensions["trivet.accounts"]
    priced = replace(extension, settings=settings)
    monkeypatch.setitem(accounts.app.extensions, "trivet.accounts", priced)
    today = utc_now().date()
    with accounts.site.database.session() as session:
        add_usage(session, {UsageKey(today, 0, 0, "demo"): Tokens(1, 1_000_000, 400_000, 100_000)})
        add_usage(session, {UsageKey(today, 0, 0, "=other"): Tokens(1, 1_000_000, 400_000, 100_000)})
    token = accounts.with_token()
    found = token.get(USAGE).get_json()
    assert {row["model"]: row["cost"] for row in found["data"]} == {"demo": 2.4, "=other": 1.0}
    assert (found["currency"], found["cost"], found["unpriced_models"]) == ("EUR", 3.4, [])
    del prices["*"]
    found = token.get(USAGE).get_json()
    assert (found["cost"], found["unpriced_models"]) == (2.4, ["=other"]), "what a sum leaves out is told"
    table = token.get(f"{USAGE}.csv")
    assert table.mimetype == "text/csv"
    header, *rows = table.text.splitlines()
    assert header.split(",") == [
        *("day", "user", "key_id", "key", "model", "requests", "prompt_tokens", "cached_tokens"),
        *("completion_tokens", "cost_EUR"),
    ]
    assert rows[0].split(",")[4] == "'=other", "no formula for a spreadsheet"
    assert token.get(f"{USAGE}?first=2020-01-01&last=2020-01-31").get_json()["data"] == []
    assert token.get(f"{USAGE}?first=yesterday").status_code == 400


# ---- what is stored ------------------------------------------------------------------------------


def test_files_batches_and_responses_are_ones_own(served: Accounts, eventually: Callable[..., None]) -> None:
    user, other = served.with_key("user"), served.with_key("operator")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    lines = [line | {"body": {"model": m, **CHAT}, "custom_id": m} for m in ("demo", "secret")]
    content = "\n".join(map(json.dumps, lines)).encode()
    limited = served.with_key("user", models=["demo"])
    form = {"purpose": "batch", "file": (BytesIO(content), "in.jsonl")}
    file_id = user.post("/v1/files", data=form).get_json()["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert other.post("/v1/batches", json=body).status_code == 404
    batch_id = limited.post("/v1/batches", json=body).get_json()["id"]
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
        assert status(other, path) == 404, path
        assert status(user, path) == 200, path
    assert other.delete(f"/v1/files/{file_id}").status_code == 404
    assert other.post(f"/v1/batches/{batch_id}/cancel").status_code == 404
    for path in ("/v1/files", "/v1/batches"):
        assert other.get(path).get_json()["data"] == [], path
        assert len(user.get(path).get_json()["data"]) == 1, path

    def batch() -> dict[str, Any]:
        found: dict[str, Any] = user.get(f"/v1/batches/{batch_id}").get_json()
        return found

    eventually(lambda: batch()["status"] == "completed", within_s=60)
    assert batch()["request_counts"] == {"total": 2, "completed": 1, "failed": 1}, "as the key may"
    output = f"/v1/files/{batch()['output_file_id']}/content"
    assert status(other, output) == 404
    assert status(user, output) == 200
    eventually(lambda: usage_of(served).get("demo") is not None)
    assert usage_of(served)["demo"].key_id != 0


def status(client: FlaskClient, path: str) -> int:
    """Of an answer whose file is closed again."""
    with client.get(path) as response:
        return response.status_code


def test_a_new_user_has_nothing_of_one_who_was_removed(accounts: Accounts) -> None:
    with accounts.site.database.session() as session:
        earlier = create_user(session, "earlier", "user", "x").id
    client = accounts.with_key("earlier")
    form = {"purpose": "batch", "file": (BytesIO(b'{"custom_id": "a secret"}'), "in.jsonl")}
    file_id = client.post("/v1/files", data=form).get_json()["id"]
    assert status(client, f"/v1/files/{file_id}/content") == 200
    assert accounts.with_token().delete("/platform/v1/users/earlier").status_code == 204
    with accounts.site.database.session() as session:
        assert create_user(session, "later", "user", "x").id > earlier
    client = accounts.with_key("later")
    assert status(client, f"/v1/files/{file_id}/content") == 404
    assert client.get("/v1/files").get_json()["data"] == []


def test_stored_responses_are_ones_own(served: Accounts) -> None:
    app = served.open_again(store_responses=True).application
    headers = [{"Authorization": f"Bearer {served.key(name)}"} for name in ("user", "operator")]
    mine, other = (app.test_client() for _ in headers)
    body = {"model": "demo", "input": "a", "max_output_tokens": 2}
    made = mine.post("/v1/responses", json=body, headers=headers[0]).get_json()["id"]
    assert mine.get(f"/v1/responses/{made}", headers=headers[0]).status_code == 200
    assert other.get(f"/v1/responses/{made}", headers=headers[1]).status_code == 404
    assert other.delete(f"/v1/responses/{made}", headers=headers[1]).status_code == 404
    more = {**body, "previous_response_id": made}
    assert other.post("/v1/responses", json=more, headers=headers[1]).status_code == 404


def test_many_threads_at_once_keep_one_account(served: Accounts) -> None:
    key, process = served.with_key("user"), served.app.extensions["trivet"]
    secret = key.environ_base["HTTP_AUTHORIZATION"]

    def ask() -> None:
        client = served.app.test_client()
        for _ in range(5):
            assert chat_with(client, secret) == 200

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    process.usage.flush()
    assert usage_of(served)["demo"].requests == 20


def chat_with(client: FlaskClient, authorization: str) -> int:
    headers = {"Authorization": authorization}
    response = client.post("/v1/chat/completions", json={"model": "demo", **CHAT}, headers=headers)
    return response.status_code
