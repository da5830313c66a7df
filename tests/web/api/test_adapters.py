"""Adapters (LoRA) as clients see them: their ids, who may use them, which instance answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from flask.testing import FlaskClient

from trivet_registry.deployment_changes import sleep_deployment
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.keys_store import KeySettings, create_key
from trivet_web.models.served_models import ServedModel

if TYPE_CHECKING:
    from conftest import Eventually, NewSite, Site

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"messages": MESSAGES, "max_tokens": 2}
TEXT = {"prompt": "hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def adapted(
    new_site: NewSite,
    served_model: ServedModel,
    open_client: Callable[[Site, ServedModel], FlaskClient],
    eventually: Eventually,
) -> Iterator[FlaskClient]:
    """`demo` has sql and tone, `other` tone, prose and bare; `bare` is a deployment and has none."""
    with new_site() as site:
        site.start_engine("--adapters", "sql,tone")
        for name, adapters in (("other", "tone,prose,bare"), ("bare", "")):
            site.deploy(name)
            site.start_engine("--adapters", adapters, name=name)
        client = open_client(site, served_model)
        hear(client, site, eventually)
        yield client


def hear(client: FlaskClient, site: Site, eventually: Eventually) -> None:
    """Until each engine has told which adapters it has."""
    process = client.application.extensions["trivet"]
    for engine in site.engines:
        eventually(lambda one=engine.instance: (view := process.engine_view(one)) and view.beat)


def said(response: Any) -> str:
    """What a chat or a completion says."""
    assert response.status_code == 200, response.data
    (choice,) = response.get_json()["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.data
    return response.get_json()["error"]


def test_the_list_has_the_adapters_that_are_loaded_behind_their_model(adapted: FlaskClient) -> None:
    found = {one["id"]: one for one in adapted.get("/v1/models").get_json()["data"]}
    assert list(found) == [
        *("bare", "demo", "demo:sql", "demo:tone", "other", "other:bare", "other:prose", "other:tone")
    ]
    one = found["demo:sql"]
    assert (one["root"], one["parent"], one["ready"]) == ("sql", "demo", True)
    assert one["max_model_len"] == found["demo"]["max_model_len"]
    assert found["demo"]["parent"] is None
    assert adapted.get("/v1/models/demo:sql").get_json() == one
    assert "has no adapter 'x'" in error_of(adapted.get("/v1/models/demo:x"), 404)["message"]


def test_an_adapter_is_ready_where_a_request_reaches_it_or_wakes_its_model(
    site: Site, site_client: FlaskClient
) -> None:
    site.deploy("new", adapters="sql=/sql")
    site.deploy("slept", adapters="sql=/sql", idle_timeout_s="60")
    with site.database.session() as session:
        sleep_deployment(session, "slept", "nobody used it")
    site_client.application.extensions["trivet"].router.table(fresh=True)
    found = {one["id"]: one["ready"] for one in site_client.get("/v1/models").get_json()["data"]}
    assert {name: found[name] for name in found if "s" in name} == {"slept": True, "slept:sql": True}
    assert site_client.get("/v1/models/slept:sql").get_json()["ready"] is True
    assert site_client.get("/v1/models/new:sql").get_json()["ready"] is False
    names = [one["name"] for one in site_client.get("/api/tags").get_json()["models"]]
    assert "slept:sql" in names
    assert "new:sql" not in names


def test_an_adapter_is_of_one_model_again_as_soon_as_the_other_was_stopped(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        site.deploy(name, adapters="tone=/tone")
    error = error_of(site_client.get("/v1/models/tone"), 404)
    assert "is of several models; name one: one:tone, two:tone" in error["message"]
    monkeypatch.setattr("trivet_web.engines.routing.MAX_AGE_S", 60.0)
    site_client.application.extensions["trivet"].router.table()
    with site.database.session() as session:
        stop_deployment(session, "two")
    assert site_client.get("/v1/models/tone").get_json()["id"] == "one:tone"


@pytest.mark.parametrize(
    ("fields", "word", "shown"),
    [
        ({"model": "demo"}, "w", "demo"),
        ({"model": "demo:sql"}, "sql", "demo:sql"),
        ({"model": "sql"}, "sql", "demo:sql"),
        ({"model": "prose"}, "prose", "other:prose"),
        ({"model": "demo", "lora_path": "sql"}, "sql", "demo:sql"),
        ({"model": "demo", "lora_name": "tone"}, "tone", "demo:tone"),
        ({"model": "demo:tone", "lora_name": "tone"}, "tone", "demo:tone"),
        ({"model": "demo", "lora_path": None, "lora_name": ""}, "w", "demo"),
        ({"model": "bare"}, "w", "bare"),  # a deployment, though an adapter bears its name
        ({"model": "other:bare"}, "bare", "other:bare"),
    ],
)
def test_each_way_to_name_an_adapter_reaches_it(
    adapted: FlaskClient, fields: dict[str, Any], word: str, shown: str
) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        response = adapted.post(path, json={**body, **fields})
        assert said(response).split() == [f"{word}0", f"{word}1"]
        assert response.get_json()["model"] == shown


@pytest.mark.parametrize(
    ("fields", "status", "param", "sentence"),
    [
        ({"model": "demo:x"}, 404, "model", "model 'demo' has no adapter 'x'; it has: sql, tone"),
        ({"model": "demo", "lora_name": "x"}, 404, "model", "has no adapter 'x'; it has: sql, tone"),
        ({"model": "bare:x"}, 404, "model", "it has: none; launch it with `--adapter NAME=FOLDER`"),
        ({"model": "demo:"}, 404, "model", "model 'demo:' does not exist; deployed: bare, demo"),
        ({"model": "tone"}, 404, "model", "is of several models; name one: demo:tone, other:tone"),
        ({"model": "nobody:tone"}, 404, "model", "model 'nobody:tone' does not exist; deployed: bare, demo"),
        ({"model": "demo:sql", "lora_path": "tone"}, 400, "lora_path", "a request has one adapter"),
        ({"model": "demo", "lora_path": ["sql"]}, 400, "lora_path", "lora_path is wrong"),
    ],
)
def test_what_no_adapter_is_meant_by_is_refused_and_says_what_there_is(
    adapted: FlaskClient, fields: dict[str, Any], status: int, param: str, sentence: str
) -> None:
    error = error_of(adapted.post("/v1/chat/completions", json={**CHAT, **fields}), status)
    assert sentence in error["message"]
    assert error["param"] == param
    assert error["code"] == ("model_not_found" if status == 404 else "invalid_request")


def test_every_dialect_takes_an_adapter_by_its_id(adapted: FlaskClient) -> None:
    def post(path: str, **body: Any) -> dict[str, Any]:
        response = adapted.post(path, json=body)
        assert response.status_code == 200, response.data
        return response.get_json()

    text = {"model": "demo:sql", "stream": False, "options": {"num_predict": 2}}
    assert post("/api/chat", messages=MESSAGES, **text)["message"]["content"].split() == ["sql0", "sql1"]
    assert post("/api/generate", prompt="hi", **text)["response"].split() == ["sql0", "sql1"]
    assert post("/api/generate", prompt="hi", raw=True, **text)["response"].split() == ["sql0", "sql1"]
    answer = post("/v1/messages", model="demo:sql", max_tokens=2, messages=MESSAGES)
    assert (answer["content"][0]["text"].split(), answer["model"]) == (["sql0", "sql1"], "demo:sql")
    answer = post("/v1/responses", model="demo:sql", input="hi", max_output_tokens=16)
    assert answer["model"] == "demo:sql"
    assert answer["output"][0]["content"][0]["text"].startswith("sql0 sql1")
    answer = post("/generate?model=demo:sql", inputs="hi", parameters={"max_new_tokens": 2})
    assert answer["generated_text"].split() == ["sql0", "sql1"]
    parameters = {"max_new_tokens": 2, "adapter_id": "sql"}
    answer = post("/generate?model=demo", inputs="hi", parameters=parameters)
    assert answer["generated_text"].split() == ["sql0", "sql1"]
    base = post("/tokenize", model="demo", prompt="hello there")
    assert post("/tokenize", model="demo:sql", prompt="hello there") == base
    assert post("/tokenize", model="demo", lora_name="sql", prompt="hello there") == base
    assert post("/detokenize", model="demo:sql", tokens=base["tokens"])["prompt"] == "hello there"
    count = {"messages": MESSAGES, "max_tokens": 1}
    assert post("/v1/messages/count_tokens", model="demo:sql", **count)["input_tokens"] > 0


def test_a_stream_of_an_adapter_bears_its_id(adapted: FlaskClient) -> None:
    data = adapted.post("/v1/chat/completions", json={**CHAT, "model": "demo:sql", "stream": True}).data
    assert data.count(b'"model":"demo:sql"') == data.count(b'"object":"chat.completion.chunk"')
    assert b"sql1" in data


def test_ollama_makes_a_name_for_an_adapter(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.deploy("two", adapters="sql=/adapters/sql")
    site.start_engine("--adapters", "sql,tone", name="two")
    hear(site_client, site, eventually)

    def create(name: str, text: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {site.token}"}
        body |= {"model": name, "modelfile": text, "stream": False}
        return site_client.post("/api/create", json=body, headers=headers)

    def chat(model: str) -> str:
        body = {"model": model, "messages": MESSAGES, "stream": False, "options": {"num_predict": 1}}
        return str(site_client.post("/api/chat", json=body).get_json()["message"]["content"]).strip()

    assert create("by-name", "FROM two\nADAPTER tone\nSYSTEM short").status_code == 200
    assert create("by-folder", "FROM two\nADAPTER /adapters/sql/").status_code == 200
    assert create("of-another", "FROM by-folder\nSYSTEM long").status_code == 200
    assert create("of-an-id", "FROM two:tone").status_code == 200
    assert create("back", "FROM two").status_code == 200
    assert [chat(one) for one in ("by-name", "by-folder", "of-another", "of-an-id", "back")] == [
        *("tone0", "sql0", "sql0", "tone0", "w0")
    ]
    shown = site_client.post("/api/show", json={"model": "by-name"}).get_json()
    assert "ADAPTER tone\n" in shown["modelfile"]
    for wrong in ("ADAPTER prose", "ADAPTER /etc", "ADAPTER ./sql"):
        response = create("x", f"FROM two\n{wrong}")
        assert response.status_code == 400
        assert "model 'two' has sql, tone: launch the model with `--adapter" in response.get_json()["error"]
    response = create("x", "FROM two", adapters={"a.safetensors": "sha256:1"})
    assert (response.status_code, "nothing is uploaded" in response.get_json()["error"]) == (400, True)


def test_ollamas_tag_is_an_adapter_before_it_is_a_version(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    site.deploy("smollm2")
    site.start_engine("--adapters", "1", name="smollm2")
    hear(site_client, site, eventually)
    for model, word in (("smollm2:1", "10"), ("smollm2", "w0"), ("smollm2:latest", "w0")):
        body = {"model": model, "messages": MESSAGES, "stream": False, "options": {"num_predict": 1}}
        answer = site_client.post("/api/chat", json=body).get_json()
        assert answer["message"]["content"].strip() == word


def test_ollama_lists_adapters(adapted: FlaskClient) -> None:
    names = [one["name"] for one in adapted.get("/api/tags").get_json()["models"]]
    assert {"demo:latest", "demo:sql", "demo:tone", "bare:latest"} <= set(names)
    shown = adapted.post("/api/show", json={"model": "demo:sql"}).get_json()
    assert "FROM demo\nADAPTER sql\n" in shown["modelfile"]
    response = adapted.post("/api/chat", json={"model": "demo:8b", "messages": MESSAGES})
    assert response.status_code == 404
    assert "demo:sql" in response.get_json()["error"]


def test_the_request_log_tells_the_adapter_and_counts_go_to_the_deployment(
    adapted: FlaskClient,
) -> None:
    process = adapted.application.extensions["trivet"]
    said(adapted.post("/v1/completions", json={**TEXT, "model": "demo:sql"}))
    newest = process.requests.newest(1)[0]
    assert (newest.model, newest.adapter) == ("demo", "sql")
    metrics = adapted.get("/metrics").get_data(as_text=True)
    assert 'model_name="demo"' in metrics
    assert "demo:sql" not in metrics


class Limited:
    """A client with a key."""

    def __init__(self, client: FlaskClient, key: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {key}"}

    def complete(self, model: str) -> Any:
        return self._client.post("/v1/completions", json={**TEXT, "model": model}, headers=self._headers)

    def ids(self) -> list[str]:
        response = self._client.get("/v1/models", headers=self._headers)
        return [one["id"] for one in response.get_json()["data"]]


def test_a_key_for_a_deployment_is_one_for_its_adapters_and_for_no_others(
    site: Site,
    served_model: ServedModel,
    open_client: Callable[[Site, ServedModel], FlaskClient],
    eventually: Eventually,
) -> None:
    site.start_engine("--adapters", "sql,tone")
    site.deploy("other")
    site.start_engine("--adapters", "tone,prose", name="other")
    with site.database.session() as session:
        _, key = create_key(session, None, KeySettings("k", ("infer",), models=("demo",)))
    client = open_client(site, served_model)
    hear(client, site, eventually)
    limited = Limited(client, key)
    assert limited.ids() == ["demo", "demo:sql", "demo:tone"]
    assert said(limited.complete("demo:sql")).split() == ["sql0", "sql1"]
    assert said(limited.complete("tone")).split() == ["tone0", "tone1"], "the other one is not there for it"
    for hidden in ("other:tone", "other:prose", "prose", "other"):
        error = error_of(limited.complete(hidden), 404)
        assert error["code"] == "model_not_found"
        assert "other" not in error["message"].replace(f"{hidden!r}", ""), "it names none that it may not use"


def test_an_adapter_is_served_by_a_replica_that_has_it_and_listed_while_one_does(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    having = site.start_engine("--adapters", "sql")
    for _ in range(2):
        site.start_engine()
    hear(site_client, site, eventually)
    for _ in range(6):
        assert said(site_client.post("/v1/completions", json={**TEXT, "model": "demo:sql"})) == "sql0 sql1 "
    having.kill()
    site_client.application.extensions["trivet"].router.table(fresh=True)
    response = site_client.post("/v1/completions", json={**TEXT, "model": "demo:sql"})
    assert response.status_code in (404, 503)
    assert "sql" in response.get_json()["error"]["message"]
    assert said(site_client.post("/v1/completions", json={**TEXT, "model": "demo"})) == "w0 w1 "
