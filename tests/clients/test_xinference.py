"""The `xinference-client` package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from xinference_client import RESTfulClient

if TYPE_CHECKING:
    from conftest import Server

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
FEW: Any = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Server) -> RESTfulClient:
    return RESTfulClient(server.url, api_key=server.token)


def test_life_of_a_model(client: RESTfulClient, server: Server) -> None:
    files = {"model_name": "own", "model_specs": [{"model_uri": f"file://{server.model_file}"}]}
    client.register_model("LLM", json.dumps(files), persist=True)
    assert "own" in [model["model_name"] for model in client.list_model_registrations("LLM")]
    uid = client.launch_model("own", model_uid="mine", model_engine="null", model_format="ggufv2")
    assert uid == "mine"
    described = client.describe_model(uid)
    assert (described["model_name"], described["model_type"]) == ("own", "LLM")
    assert uid in client.list_models()
    model = client.get_model(uid)
    whole = model.chat(HELLO, generate_config=FEW)
    chunks = list(model.chat(HELLO, generate_config={**FEW, "stream": True}))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert model.generate("a", generate_config=FEW)["usage"]["completion_tokens"] == 4
    client.terminate_model(uid)
    assert uid not in client.list_models()


@pytest.mark.parametrize(
    ("kind", "ask", "wanted"),
    [
        ("embedding", lambda model: [len(one["embedding"]) for one in vectors(model)], [576, 576]),
        (
            "rerank",
            lambda model: sorted(one["document"]["text"] for one in ranks(model)),
            ["a cat", "rust"],
        ),
    ],
)
def test_vectors_and_ranks(
    client: RESTfulClient, server: Server, kind: str, ask: Any, wanted: list[object]
) -> None:
    uid = client.launch_model(
        "smollm2", model_uid=kind, model_type=kind, model_engine="null", model_path=server.model_file
    )
    assert ask(client.get_model(uid)) == wanted
    client.terminate_model(uid)


def vectors(model: Any) -> list[dict[str, Any]]:
    return list(model.create_embedding(["a", "b"])["data"])


def ranks(model: Any) -> list[dict[str, Any]]:
    return list(model.rerank(["a cat", "rust"], "an animal", return_documents=True)["results"])


def test_real_model_answers(client: RESTfulClient) -> None:
    answer = client.get_model("smol").chat(HELLO, generate_config=FEW)
    assert answer["choices"][0]["message"]["content"]


def test_failures_say_what_was_wrong(client: RESTfulClient, server: Server) -> None:
    with pytest.raises(RuntimeError, match="is not registered"):
        client.launch_model("nothing")
    with pytest.raises(RuntimeError, match="deployed: "):
        client.get_model("nothing")
    with pytest.raises(RuntimeError, match="temperature is -1"):
        client.get_model("smol").chat(HELLO, generate_config={"temperature": -1})
    with pytest.raises(RuntimeError, match="token"):
        RESTfulClient(server.url).launch_model("own")
