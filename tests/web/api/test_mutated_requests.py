"""Requests that were damaged at random, on the null backend: never a 5xx, never a traceback.

A fixed seed and a small number here; the long form is the first step of `tests/run soak`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from damaged_requests import MANAGING, MODEL, SEEDS, damaged
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet_web.batch.offline_site import OfflineSite

if TYPE_CHECKING:
    from conftest import Site

NUM_REQUESTS, NUM_ACTS = 400, 100
HANG_S = 60.0  # of one request, on a busy machine


def faults_of(client: FlaskClient, path: str, data: bytes, statuses: Counter[int]) -> str:
    """What is wrong with the answer; empty where nothing is."""
    with client.post(path, data=data, content_type="application/json") as response:
        statuses[response.status_code] += 1
        return _fault(response, path)


def _fault(response: TestResponse, path: str) -> str:
    if response.status_code >= 500:
        return f"status {response.status_code}: {response.data[:300]!r}"
    if not response.headers.get("X-Request-ID"):
        return "no request id"
    if response.status_code >= 400:
        if not _is_error_object((response.get_json(silent=True) or {}).get("error"), path):
            return f"no error object: {response.data[:300]!r}"
    elif b'"server_error"' in response.data and response.mimetype == "text/event-stream":
        return f"error in the stream: {response.data[-300:]!r}"
    return ""


def _is_error_object(error: Any, path: str) -> bool:
    """As that route's clients expect it."""
    if path.startswith(("/api/", "/generate")) or path == "/":
        return isinstance(error, str) and bool(error)
    names = {"type", "message"} if path.startswith("/v1/messages") else {"message", "type", "param", "code"}
    return isinstance(error, dict) and set(error) == names and bool(error["message"])


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


def failures(
    client: FlaskClient,
    count: int,
    seed: int,
    statuses: Counter[int],
    seeds: Sequence[tuple[str, dict[str, Any]]] = SEEDS,
) -> list[str]:
    draw, tracebacks, found = random.Random(seed), Tracebacks(), []
    logging.getLogger().addHandler(tracebacks)
    try:
        for number in range(count):
            path, data = damaged(draw, seeds)
            begun_s = time.monotonic()
            fault = faults_of(client, path, data, statuses)
            if (took_s := time.monotonic() - begun_s) > HANG_S:
                fault += f" it took {took_s:.0f} s"
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
    assert statuses[400] + statuses[422] > NUM_REQUESTS / 4, "TGI's are 422"


def test_no_damaged_act_is_a_server_error(site: Site, site_client: FlaskClient) -> None:
    """Launching, registering, naming: in the dialects that can."""
    site_client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {site.token}"
    statuses: Counter[int] = Counter()
    assert not failures(site_client, NUM_ACTS, 8, statuses, MANAGING)
    assert statuses[200] > NUM_ACTS / 20, "some are still good ones"


TEXTS = (
    *("👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏿", "\u202eabc\u202c שלום عربي", "e\u0301\u0301\u0301 n\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙", "東京特許許可局"),
    *(
        "\u2028\u2029\u0085\x7f\x01\x1f",
        "\ufeff\ufffe\uffff",
        "\U0001d573\U0001d58a",
        "a\U0010ffff",
        "<|im_start|>x<|im_end|>",
    ),
    *("\r\n\t\v\f", "İıſẞ", "ﷺ"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_any_script_is_the_same_tokenised_whole_and_streamed(client: FlaskClient, text: str) -> None:
    """Its characters are cut by tokens, and by the chunks of a stream."""
    ids = client.post("/tokenize", json={"model": MODEL, "prompt": text}).get_json()["tokens"]
    assert client.post("/detokenize", json={"model": MODEL, "tokens": ids}).get_json() == {"prompt": text}
    body = {"model": MODEL, "prompt": text, "echo": True, "max_tokens": 6, "temperature": 0, "logprobs": 1}
    (whole,) = client.post("/v1/completions", json=body).get_json()["choices"]
    assert whole["text"].startswith(text)
    data = client.post("/v1/completions", json={**body, "stream": True}).get_data()
    chunks = [json.loads(event[6:]) for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name in ("tokens", "text_offset", "token_logprobs"):
        told = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"][name]]
        assert told == whole["logprobs"][name], name
    said = [{"role": "user", "content": "hi"}]
    forced = {"model": MODEL, "messages": said, "structured_outputs": {"choice": [text]}, "max_tokens": 200}
    answer = client.post("/v1/chat/completions", json=forced)
    assert answer.status_code in (200, 400), answer.data  # a mark of the template cannot be asked for
    if answer.status_code == 200 and not text.startswith("<|"):
        assert answer.get_json()["choices"][0]["message"]["content"] == text


if __name__ == "__main__":
    begun_s, totals = time.monotonic(), Counter[int]()
    with null_client() as opened:
        wrong = failures(opened, int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, totals)
    print("\n".join(wrong[:40]))
    print(f"{len(wrong)} wrong of {sum(totals.values())}, {dict(totals)}, {time.monotonic() - begun_s:.0f} s")
    sys.exit(bool(wrong))
