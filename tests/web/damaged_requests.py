"""Requests of every route that reads JSON, and how they are damaged at random."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

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
ANTHROPIC = {
    "max_tokens": 4,
    "system": [{"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sunny"}]},
    ],
    "tools": [{"name": "weather", "description": "d", "input_schema": FUNCTION["parameters"]}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}
OPTIONS = {"num_predict": 4, "temperature": 0.5, "top_k": 3, "seed": 1, "stop": ["zz"], "repeat_last_n": 64}
DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {**ANTHROPIC, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["zz"]}),
    ("/v1/messages", {**ANTHROPIC, "stream": True, "metadata": {"user_id": "u"}}),
    ("/v1/messages", {"max_tokens": 3, "messages": ANTHROPIC["messages"], "thinking": {"type": "disabled"}}),
    ("/v1/messages/count_tokens", {key: ANTHROPIC[key] for key in ("messages", "system", "tools")}),
    (
        "/api/chat",
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}],
                },
                {"role": "tool", "content": "sunny", "tool_name": "weather"},
            ],
            "tools": TOOLS,
            "options": OPTIONS,
            "stream": False,
            "keep_alive": "5m",
            "logprobs": True,
        },
    ),
    ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "options": OPTIONS, "format": "json"}),
    ("/api/generate", {"prompt": "hi", "system": "brief", "options": OPTIONS, "stream": False}),
    ("/api/generate", {"prompt": "hi", "raw": True, "options": OPTIONS, "format": {"type": "object"}}),
    ("/api/embed", {"input": ["a", "b"], "truncate": True, "dimensions": 4, "options": {"num_ctx": 9}}),
    ("/api/embeddings", {"prompt": "a", "keep_alive": 5}),
    ("/api/show", {"verbose": True}),
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 3, "details": True, "top_n_tokens": 2}}),
    (
        "/generate",
        {
            "inputs": "a",
            "parameters": {
                "max_new_tokens": 3,
                "do_sample": True,
                "seed": 1,
                "stop": ["zz"],
                "truncate": 5,
                "grammar": {"type": "regex", "value": "a+"},
                "decoder_input_details": True,
            },
        },
    ),
    ("/generate_stream", {"inputs": "a", "parameters": {"max_new_tokens": 3, "repetition_penalty": 1.1}}),
    ("/", {"inputs": "a", "parameters": {"max_new_tokens": 3}, "stream": True}),
]
MANAGING: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/models?wait_ready=false",
        {
            "model_uid": "u",
            "model_name": "smollm2",
            "model_engine": "null",
            "model_format": "gguf",
            "quantization": "Q4_1",
            "replica": 1,
            "n_gpu": None,
            "max_model_len": 64,
        },
    ),
    (
        "/v1/model_registrations/LLM",
        {
            "model": json.dumps(
                {"model_name": "n", "model_specs": [{"model_uri": "/nowhere", "model_format": "gguf"}]}
            ),
            "persist": True,
        },
    ),
    (
        "/api/create",
        {
            "model": "n",
            "from": "demo",
            "system": "s",
            "parameters": {"seed": 1},
            "messages": [{"role": "user", "content": "a"}],
            "stream": False,
        },
    ),
    ("/api/create", {"model": "n", "modelfile": "FROM demo\nPARAMETER seed 1\nSYSTEM s", "stream": False}),
    ("/api/copy", {"source": "demo", "destination": "n"}),
    ("/api/pull", {"model": "demo", "stream": False}),
    ("/api/push", {"model": "n", "stream": False}),
]
SEEDS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            **SAMPLING,
            "messages": CONVERSATION,
            "logprobs": True,
            "top_logprobs": 2,
            "chat_template_kwargs": {"a": 1, "tools": None, "add_generation_prompt": True},
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
    *DIALECTS,
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
        "[" * 3000,
        '{"a":"\\ud800"}',
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


def damaged(draw: random.Random, seeds: Sequence[tuple[str, dict[str, Any]]]) -> tuple[str, bytes]:
    """One request: a good one with a few values replaced, moved, repeated or removed, or bytes changed."""
    path, seed = draw.choice(seeds)
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
