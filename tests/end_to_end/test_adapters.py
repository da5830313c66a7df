"""Adapters (LoRA) from end to end: SmolLM2 with two random ones, asked by OpenAI's client."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import pytest

from trivet import LLM, SamplingParams
from trivet.contract_suite.tiny_adapters import make_tiny_adapter
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model

PROMPT = "Once upon a time"
QUESTION = "The capital of France is"
IDS = ("smol", "smol:sql", "smol:tone")
NUM_TOKENS = 5
# In float32 no sum depends on who else is in the batch as much as a greedy token does.
SETTINGS = {"dtype": "float32", "max_model_len": "512", "max_num_seqs": "4"}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    spec = open_model(find_demo_model()).spec
    assert spec is not None
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_tiny_adapter(spec, index, folder / name) for index, name in ((1, "sql"), (2, "tone"))}


@pytest.fixture(scope="module")
def expected(adapters: dict[str, Path]) -> dict[str, str]:
    """What the offline engine says, by the ids of the server."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings = {**SETTINGS, "adapters": json.dumps({name: str(one) for name, one in adapters.items()})}
    with LLM(str(find_demo_model()), backend="cpu", **settings) as llm:
        said = {
            one: llm.generate(PROMPT, params, use_tqdm=False, lora_request=one.partition(":")[2] or None)
            for one in IDS
        }
    return {one: outputs[0].outputs[0].text for one, outputs in said.items()}


@pytest.fixture(scope="module")
def adapted(site_of_module: Any, adapters: dict[str, Path]) -> Any:
    """A site that serves `smol` with both."""
    options = [f"--adapter={name}={folder}" for name, folder in adapters.items()]
    options += [f"--set={name}={value}" for name, value in SETTINGS.items()]
    model = str(find_demo_model())
    done = site_of_module.run("launch", model, "--name", "smol", "--backend", "cpu", *options)
    assert done.returncode == 0, done.stderr
    return site_of_module


@pytest.fixture(scope="module")
def client(adapted: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{adapted.base_url}/v1", api_key="none", max_retries=0) as made:
        wait_until_listed(adapted, made)
        yield made


def wait_until_listed(site: Any, client: openai.OpenAI) -> None:
    site.wait_for("all are listed", lambda: [one.id for one in client.models.list()] == list(IDS))


def text_of(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.model == model
    return answer.choices[0].text


def test_each_adapter_answers_as_the_offline_engine_does_and_not_as_the_model(
    client: openai.OpenAI, expected: dict[str, str]
) -> None:
    assert len(set(expected.values())) == len(IDS)
    assert {one: text_of(client, one) for one in IDS} == expected


def test_they_are_computed_in_one_batch(client: openai.OpenAI, expected: dict[str, str]) -> None:
    asked = [*IDS, *reversed(IDS)]
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda one: text_of(client, one), asked)) == [expected[one] for one in asked]


def test_a_stream_by_the_bare_name_is_the_same(client: openai.OpenAI, expected: dict[str, str]) -> None:
    stream = client.completions.create(
        model="sql",
        prompt=PROMPT,
        max_tokens=NUM_TOKENS,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert "".join(one.choices[0].text for one in stream) == expected["smol:sql"]


def test_chats_and_vectors_are_an_adapters_own(client: openai.OpenAI) -> None:
    def chat(model: str) -> str:
        message = {"role": "user", "content": QUESTION}
        answer = client.chat.completions.create(
            model=model,
            messages=[message],
            max_tokens=NUM_TOKENS,
            temperature=0,  # type: ignore[list-item]
        )
        return str(answer.choices[0].message.content)

    def vector(model: str) -> tuple[float, ...]:
        return tuple(client.embeddings.create(model=model, input=QUESTION).data[0].embedding)

    assert len({chat(one) for one in IDS}) == len(IDS)
    assert len({vector(one) for one in IDS}) == len(IDS)


def test_an_adapter_that_is_not_there_is_a_404_that_names_those_that_are(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="has no adapter 'prose'; it has: sql, tone") as refused:
        text_of(client, "smol:prose")
    assert refused.value.code == "model_not_found"


def test_a_key_for_another_deployment_knows_no_adapter_of_this_one(
    adapted: Any, client: openai.OpenAI
) -> None:
    with adapted.client() as admin:
        made = admin.keys.create("limited", models=["elsewhere"])
    limited = client.with_options(api_key=made.key)
    assert [one.id for one in limited.models.list()] == []
    for model in ("smol", "smol:sql", "sql"):
        with pytest.raises(openai.NotFoundError, match="deployed: none"):
            text_of(limited, model)


def test_lines_of_a_batch_have_adapters(
    adapted: Any, client: openai.OpenAI, expected: dict[str, str]
) -> None:
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": one, "method": "POST", "url": "/v1/completions", "body": {"model": one, **body}}
        for one in IDS
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", BytesIO(data)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    adapted.wait_for("the batch is done", lambda: client.batches.retrieve(batch.id).status == "completed")
    output = client.batches.retrieve(batch.id).output_file_id
    assert output is not None
    results = map(json.loads, client.files.content(output).text.splitlines())
    said = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in results}
    assert said == expected


def test_the_plan_and_the_instance_tell_what_adapters_take(adapted: Any, adapters: dict[str, Path]) -> None:
    options = [f"--adapter={name}={folder}" for name, folder in adapters.items()]
    done = adapted.run_here("plan", str(find_demo_model()), "--backend", "cpu", *options, "--json")
    parts = {one["name"]: one["size_bytes"] for one in json.loads(done.stdout)["parts"]}
    files = sum((folder / "adapter_model.safetensors").stat().st_size for folder in adapters.values())
    assert 0.4 * files < parts["adapters"] < 4 * files
    with adapted.client() as admin:
        (instance,) = admin.instances.list("smol")
    planned = {one.name: one.size_bytes for one in instance.plan.parts}
    assert planned["adapters"] > 0


def test_after_a_crash_the_next_engine_has_them_again(
    adapted: Any, client: openai.OpenAI, expected: dict[str, str]
) -> None:
    (pid,) = adapted.engine_pids()
    os.kill(pid, signal.SIGKILL)
    adapted.wait_for("another engine", lambda: adapted.engine_pids() not in ([pid], []))
    adapted.wait_ready("smol")
    wait_until_listed(adapted, client)
    assert {one: text_of(client, one) for one in IDS} == expected


def test_an_adapter_of_another_model_is_the_reason_why_a_launch_fails(
    adapted: Any, adapters: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(
        (adapters["sql"] / "adapter_model.safetensors").read_bytes()[:200]
    )
    (tmp_path / "adapter_config.json").write_bytes((adapters["sql"] / "adapter_config.json").read_bytes())
    model = str(find_demo_model())
    done = adapted.run("launch", model, "--name", "bad", "--backend", "cpu", f"--adapter=sql={tmp_path}")
    adapted.run_here("stop", "bad")
    assert done.returncode == 1
    assert "adapter_model.safetensors" in done.stderr
