"""Requests that were damaged at random, on the null backend: never a 5xx, never a traceback.

A fixed seed and a small number here; the long form is `python tests/web/api/test_mutated_requests.py 20000`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet_web.batch.offline_site import OfflineSite

NUM_REQUESTS = 400
MODEL = "m"
FUNCTION = {
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
CONVERSATION = [
    {"role": "system", "content": [{"type": "text", "text": "brief"}]},
    {"role": "user", "content": "hi", "name": "u"},
    {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c"},
]
SAMPLING = {
    "max_tokens": 4,
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "seed": 1,
    "stop": ["zz"],
    "stop_token_ids": [7],
    "bad_words": ["bad"],
    "allowed_token_ids": [1, 2, 3],
    "min_tokens": 1,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "priority": 1,
    "cache_salt": "s",
    "timeout": 9,
    "request_id": "r",
    "user": "u",
}
SEEDS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            **SAMPLING,
            "messages": CONVERSATION,
            "logprobs": True,
            "top_logprobs": 2,
            "chat_template_kwargs": {"a": 1},
            "documents": [{"text": "d"}],
            "reasoning_effort": "low",
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": CONVERSATION, "tools": TOOLS, "tool_choice": "auto", "max_tokens": 4},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": CONVERSATION,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 3,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": CONVERSATION[:2],
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "parallel_tool_calls": False,
            "max_tokens": 4,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": CONVERSATION[:2],
            "max_tokens": 3,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}},
            },
        },
    ),
    ("/v1/completions", {**SAMPLING, "prompt": ["a", "b"], "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2, "prompt_logprobs": 1}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "guided_regex": "a+", "truncate_prompt_tokens": 3}),
    (
        "/v1/embeddings",
        {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4, "pooling": "mean"},
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            ],
            "instructions": "brief",
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "weather"}],
            },
            "text": {"format": {"type": "text"}},
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "max_output_tokens": 4,
        },
    ),
    ("/v1/responses", {"input": "hi", "stream": True, "max_output_tokens": 4}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"], "instruction": "i", "truncate_prompt_tokens": 50}),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}),
    ("/tokenize", {"prompt": "a b", "return_token_strs": True}),
    ("/tokenize", {"messages": CONVERSATION, "tools": TOOLS, "add_generation_prompt": False}),
    (
        "/v1/batches",
        {"input_file_id": "file_" + "0" * 32, "endpoint": "/v1/completions", "metadata": {"a": "b"}},
    ),
    ("/detokenize", {"tokens": [1, 2, 3], "skip_special_tokens": True}),
]
ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        2**31,
        2**63,
        -(2**64),
        10**30,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        " ",
        "a",
        "auto",
        "none",
        "\0",
        "\ud800",
        "<|im_end|>",
        "{{",
        "x" * 3000,
        "東京",
        "null",
        "../..",
        "%s%n",
    ),
    *([], {}, [[]], [{}], {"": ""}, [None], [[[[[]]]]], {"type": "function"}, {"$ref": "#"}, [1, "a", None]),
    *({"type": "text", "text": "x"}, {"a": {"b": {"c": {}}}}, ["a"] * 70, list(range(40)), {"text": None}),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in it, with each of its keys."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in list(entries):
        yield value, key
        yield from places(inner)


def damaged(draw: random.Random) -> tuple[str, bytes]:
    """One request: a good one with a few values replaced, moved, repeated or removed, or bytes changed."""
    path, seed = draw.choice(SEEDS)
    body = json.loads(json.dumps({"model": MODEL, **seed}))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        holder, key = draw.choice(list(places(body)) or [({}, "a")])
        kind = draw.random()
        if kind < 0.7:
            holder[key] = deepcopy(draw.choice(ODD))
        elif kind < 0.8:
            del holder[key]
        elif kind < 0.9:
            other, place = draw.choice(list(places(body)) or [({}, "a")])
            holder[key] = json.loads(json.dumps(other.get(place) if isinstance(other, dict) else other))
        elif isinstance(holder, dict):
            holder[f"{key}{draw.choice(('', 's', '_', chr(0)))}"] = deepcopy(draw.choice(ODD))
    data = bytearray(json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass"))
    if draw.random() < 0.15:
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            data[at : at + draw.choice((1, 1, 3))] = draw.choice((b"", bytes([draw.randrange(256)])))
            data = data or bytearray(b"{")
    return path, bytes(data)


def faults_of(client: FlaskClient, path: str, data: bytes, statuses: Counter[int]) -> str:
    """What is wrong with the answer; empty where nothing is."""
    with client.post(path, data=data, content_type="application/json") as response:
        statuses[response.status_code] += 1
        return _fault(response)


def _fault(response: TestResponse) -> str:
    if response.status_code >= 500:
        return f"status {response.status_code}: {response.data[:300]!r}"
    if not response.headers.get("X-Request-ID"):
        return "no request id"
    if response.status_code >= 400:
        error = (response.get_json(silent=True) or {}).get("error")
        if (
            not isinstance(error, dict)
            or set(error) != {"message", "type", "param", "code"}
            or not error["message"]
        ):
            return f"no error object: {response.data[:300]!r}"
    elif b'"server_error"' in response.data and response.mimetype == "text/event-stream":
        return f"error in the stream: {response.data[-300:]!r}"
    return ""


class Tracebacks(logging.Handler):
    """Collects what was logged with one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextlib.contextmanager
def null_client() -> Iterator[FlaskClient]:
    llm = LLM(find_demo_model(), backend="null", max_model_len=384, max_num_seqs=64)
    site = OfflineSite(llm, [MODEL], num_threads=4)
    try:
        yield site.client()
    finally:
        site.close()


def failures(client: FlaskClient, count: int, seed: int, statuses: Counter[int]) -> list[str]:
    draw, tracebacks, found = random.Random(seed), Tracebacks(), []
    logging.getLogger().addHandler(tracebacks)
    try:
        for number in range(count):
            path, data = damaged(draw)
            fault = faults_of(client, path, data, statuses)
            if fault or tracebacks.found:
                found.append(
                    f"{number} {path} {data[:1500]!r}\n  {fault} {''.join(tracebacks.found)[-1500:]}"
                )
                tracebacks.found.clear()
    finally:
        logging.getLogger().removeHandler(tracebacks)
    return found


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with null_client() as made:
        yield made


def test_no_damaged_request_is_a_server_error(client: FlaskClient) -> None:
    statuses: Counter[int] = Counter()
    assert not failures(client, NUM_REQUESTS, 8, statuses)
    assert not statuses[429], "each gives its thread back"
    assert statuses[200] > NUM_REQUESTS / 20, "some are still good ones"
    assert statuses[400] > NUM_REQUESTS / 4


if __name__ == "__main__":
    begun_s, totals = time.monotonic(), Counter[int]()
    with null_client() as opened:
        wrong = failures(opened, int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, totals)
    print("\n".join(wrong[:40]))
    print(f"{len(wrong)} wrong of {sum(totals.values())}, {dict(totals)}, {time.monotonic() - begun_s:.0f} s")
    sys.exit(bool(wrong))
