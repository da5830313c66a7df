"""What articles and manuals teach, with only URL, key, model and import changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ollama
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from xinference_client import RESTfulClient

if TYPE_CHECKING:
    from conftest import Server

OFFLINE = Path(__file__).with_name("offline_samples.py")
SETTINGS = [
    *("dtype=half", "gpu_memory_utilization=0.1", "max_model_len=1024", "tensor_parallel_size=1"),
    *("block_size=16", "swap_space=0.01", "max_num_seqs=8", "max_num_batched_tokens=512"),
]


@pytest.mark.parametrize("name", ["batch", "ignored_end", "loop"])
def test_without_a_server(server: Server, name: str) -> None:
    subprocess.run([server.python, OFFLINE, name, server.model_file], check=True, timeout=240)


def trivet(server: Server, *words: str) -> str:
    command = Path(server.python).with_name("trivet")
    environment = {**os.environ, "TRIVET_HOME": server.home}
    return subprocess.run(
        [command, *words], env=environment, check=True, timeout=120, stdout=-1
    ).stdout.decode()


def curl(url: str, *options: str) -> Any:
    program = shutil.which("curl")
    if program is None:
        assert "CI" not in os.environ, "curl is not installed, and the samples need it"
        pytest.skip("curl is not installed")
    return json.loads(
        subprocess.check_output([program, "--silent", "--show-error", url, *options], timeout=120)
    )


def test_a_model_under_another_name_with_a_key_and_the_flags_that_users_know(server: Server) -> None:
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    trivet(server, "launch", server.model_file, "--name", "renamed", "--backend", "null", *options)
    body = {"model": "renamed", "prompt": "San Francisco is a", "max_tokens": 50, "temperature": 0}
    secret = json.loads(trivet(server, "keys", "create", "samples", "--json"))["key"]
    key = f"Authorization: Bearer {secret}"
    said = curl(
        f"{server.url}/v1/completions",
        "-H",
        "Content-Type: application/json",
        "-H",
        key,
        "-d",
        json.dumps(body),
    )
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=secret) as client:
        completion = client.completions.create(**body)
        assert client.models.retrieve("renamed").model_dump()["max_model_len"] == 1024
    assert completion.choices[0].text == said["choices"][0]["text"]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 50
    trivet(server, "stop", "renamed")


def test_ollama_without_a_key_and_a_modelfile(server: Server, tmp_path: Path) -> None:
    body = {"model": "smol", "prompt": "Why is the sky blue?", "stream": False, "options": {"num_predict": 8}}
    said = curl(f"{server.url}/api/generate", "-d", json.dumps(body))
    assert said["done"] is True
    assert said["response"]
    key = f"Authorization: Bearer {server.token}"
    modelfile = 'FROM smol\nPARAMETER temperature 0\nPARAMETER num_predict 4\nSYSTEM "You are Mario."'
    made = {"model": "mario2", "modelfile": modelfile, "stream": False}
    assert curl(f"{server.url}/api/create", "-H", key, "-d", json.dumps(made))["status"] == "success"
    client = ollama.Client(host=server.url, headers={"Authorization": f"Bearer {server.token}"})
    assert client.pull("mario2").status == "success"
    pulled = curl(f"{server.url}/api/pull", "-H", key, "-d", json.dumps({"model": "smol", "stream": False}))
    assert pulled["status"] == "success"
    names = {str(model.model).partition(":")[0] for model in client.list().models}
    assert {"smol", "null", "mario2"} <= names
    for name in ("smol", "null", "mario2"):  # several at once
        assert client.generate(name, "hi", options={"num_predict": 4, "temperature": 0}).eval_count == 4
    client.delete("mario2")


def test_xinference_registered_launched_asked_and_terminated(server: Server) -> None:
    client = RESTfulClient(server.url, api_key=server.token)
    specs = [
        {
            "model_format": "ggufv2",
            "model_size_in_billions": "0.135",
            "quantizations": ["Q4_1"],
            "model_uri": f"file://{server.model_file}",
        }
    ]
    own = {"model_name": "custom", "context_length": 2048, "model_ability": ["chat"], "model_specs": specs}
    client.register_model(model_type="LLM", model=json.dumps(own), persist=False)
    uid = client.launch_model(
        model_name="custom",
        model_engine="llama.cpp",
        model_size_in_billions="0.135",
        model_format="ggufv2",
        quantization="Q4_1",
        n_gpu=None,
    )
    model = client.get_model(uid)
    messages = [{"role": "user", "content": "What is the largest animal?"}]
    answer = model.chat(messages, generate_config={"max_tokens": 8, "stream": False})
    assert answer["choices"][0]["message"]["content"]
    assert model.generate("The largest animal is", generate_config={"max_tokens": 8})["choices"][0]["text"]
    client.terminate_model(uid)
    client.unregister_model(model_type="LLM", model_name="custom")
    assert uid not in client.list_models()


DASHBOARD = {
    "time_to_first_token_seconds_bucket",  # TTFT
    "inter_token_latency_seconds_bucket",  # TPOT
    "request_success_total",  # requests/s
    "generation_tokens_total",  # tokens/s
    "kv_cache_usage_perc",
    "http_requests_total",  # error rate, by code
    "num_requests_waiting",  # queue length
}


def test_prometheus_finds_what_dashboards_show(server: Server) -> None:
    """By the parser of its own client library."""
    body = json.dumps({"model": "null", "prompt": "a", "max_tokens": 2}).encode()
    urllib.request.urlopen(f"{server.url}/v1/completions", data=body, timeout=60).close()
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith(("text/plain", "application/openmetrics-text"))
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    assert all(family.type != "unknown" and family.documentation for family in families)
    assert {f"trivet:{name}" for name in DASHBOARD} <= {one.name for fam in families for one in fam.samples}
