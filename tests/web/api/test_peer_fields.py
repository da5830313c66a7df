"""Every field that OpenAI or vLLM has is carried out, taken because it changes nothing, or a 400."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest
from openai.types import completion_create_params as completion
from openai.types import embedding_create_params as embedding
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as response

from trivet_web.api.chat import CHAT_UNSUPPORTED, ChatRequest
from trivet_web.api.completions import COMPLETION_UNSUPPORTED, CompletionRequest
from trivet_web.api.embeddings import EMBEDDING_UNSUPPORTED, EmbeddingRequest
from trivet_web.api.responses_request import (
    RESPONSES_UNSUPPORTED,
    RESPONSES_WITHOUT_EFFECT,
    ResponseRequest,
)
from trivet_web.api.sampling_fields import WITHOUT_EFFECT
from trivet_web.api.scoring import UNSUPPORTED as SCORING_UNSUPPORTED
from trivet_web.api.scoring import RerankRequest, ScoreRequest
from trivet_web.api.tokenization import UNSUPPORTED as TOKENIZING_UNSUPPORTED
from trivet_web.api.tokenization import TokenizeRequest
from trivet_web.dialects.anthropic.request import (
    MESSAGES_UNSUPPORTED,
    MESSAGES_WITHOUT_EFFECT,
    MessageRequest,
)
from trivet_web.dialects.ollama.embeddings import EmbedRequest
from trivet_web.dialects.ollama.requests import OllamaChatRequest, OllamaGenerateRequest
from trivet_web.dialects.tgi.request import GenerateRequest, Parameters

if TYPE_CHECKING:
    from conftest import Speaker
    from flask.testing import FlaskClient


def words(text: str) -> list[str]:
    return text.split()


# vLLM's own, beside OpenAI's: of its requests for sampling, chats and embeddings.
VLLM = words("""
use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output
ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
allowed_token_ids prompt_logprobs bad_words add_special_tokens structured_outputs guided_json guided_regex
guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern structural_tag priority
request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params
vllm_xargs repetition_detection response_format
""")
VLLM_CHAT = words("""
echo add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
mm_processor_kwargs media_io_kwargs include_reasoning thinking_token_budget best_of
""")
VLLM_EMBEDDINGS = words("""
truncate_prompt_tokens add_special_tokens priority cache_salt normalize dimensions encoding_format messages
chat_template chat_template_kwargs continue_final_message add_generation_prompt mm_processor_kwargs
request_id embed_dtype endianness use_activation
""")
VLLM_RESPONSES = words("""
background include input instructions max_output_tokens max_tool_calls metadata model logit_bias
parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text
tool_choice tools top_logprobs top_p top_k truncation user skip_special_tokens include_stop_str_in_output
prompt_cache_key request_id media_io_kwargs mm_processor_kwargs priority cache_salt enable_response_messages
previous_input_messages structured_outputs repetition_penalty presence_penalty frequency_penalty seed stop
ignore_eos min_tokens vllm_xargs kv_transfer_params ec_transfer_params chat_template_kwargs
n logprobs max_tokens messages
""")

VLLM_SCORING = words("""
model text_1 text_2 queries documents data_1 data_2 truncate_prompt_tokens mm_processor_kwargs priority
activation use_activation softmax encoding_format request_id cache_salt max_tokens_per_doc
max_tokens_per_query
""")
RERANKING = words("""
model query documents top_n return_documents truncation max_chunks_per_doc max_tokens_per_doc rank_fields
truncate_prompt_tokens mm_processor_kwargs priority activation use_activation softmax request_id
""")
VLLM_TOKENIZING = words("""
model prompt messages tools add_special_tokens add_generation_prompt continue_final_message chat_template
chat_template_kwargs mm_processor_kwargs media_io_kwargs return_token_strs
""")
ANTHROPIC = words("""
model messages max_tokens system metadata stop_sequences stream temperature top_k top_p tools tool_choice
thinking service_tier container context_management mcp_servers betas output_config output_format
inference_geo cache_control speed
""")
OLLAMA = words("""
model stream options format think keep_alive logprobs top_logprobs truncate shift
""")
OLLAMA_GENERATE = words("prompt suffix system template context raw images")
OLLAMA_EMBED = words("model input truncate options keep_alive dimensions")
TGI_PARAMETERS = words("""
best_of temperature repetition_penalty frequency_penalty top_k top_p typical_p do_sample max_new_tokens
return_full_text stop truncate watermark details decoder_input_details seed top_n_tokens grammar adapter_id
""")
# SGLang's, Xinference's and of llama.cpp's server: what would change an answer.
OTHERS = words("""
lora_path lora_name
regex ebnf json_schema stop_regex no_stop_trim session_params custom_logit_processor custom_params
return_hidden_states separate_reasoning stream_reasoning
grammar n_predict n_probs repeat_penalty mirostat typical_p dynatemp_range dry_multiplier xtc_probability
top_n_sigma samplers
""")
NO_FIELDS: frozenset[str] = frozenset()

KNOWN: list[tuple[Any, Iterable[str], Any, frozenset[str]]] = [
    (
        ChatRequest,
        [*chat.CompletionCreateParamsBase.__annotations__, "stream", *VLLM, *VLLM_CHAT, *OTHERS],
        CHAT_UNSUPPORTED,
        WITHOUT_EFFECT,
    ),
    (
        CompletionRequest,
        [*completion.CompletionCreateParamsBase.__annotations__, "stream", *VLLM, *OTHERS, "prompt_embeds"],
        COMPLETION_UNSUPPORTED,
        WITHOUT_EFFECT,
    ),
    (
        EmbeddingRequest,
        [*embedding.EmbeddingCreateParams.__annotations__, *VLLM_EMBEDDINGS],
        EMBEDDING_UNSUPPORTED,
        WITHOUT_EFFECT,
    ),
    (
        ResponseRequest,
        [*response.ResponseCreateParamsBase.__annotations__, *VLLM, *VLLM_CHAT, *VLLM_RESPONSES, *OTHERS],
        RESPONSES_UNSUPPORTED,
        RESPONSES_WITHOUT_EFFECT,
    ),
    (ScoreRequest, VLLM_SCORING, SCORING_UNSUPPORTED, NO_FIELDS),
    (RerankRequest, RERANKING, SCORING_UNSUPPORTED, NO_FIELDS),
    (TokenizeRequest, VLLM_TOKENIZING, TOKENIZING_UNSUPPORTED, NO_FIELDS),
    (MessageRequest, ANTHROPIC, MESSAGES_UNSUPPORTED, MESSAGES_WITHOUT_EFFECT),
    (OllamaChatRequest, [*OLLAMA, "messages", "tools"], {}, NO_FIELDS),
    (OllamaGenerateRequest, [*OLLAMA, *OLLAMA_GENERATE], {}, NO_FIELDS),
    (EmbedRequest, OLLAMA_EMBED, {}, NO_FIELDS),
    (GenerateRequest, words("inputs parameters stream"), {}, NO_FIELDS),
    (Parameters, TGI_PARAMETERS, {}, NO_FIELDS),
]


@pytest.mark.parametrize(("kind", "fields", "unsupported", "no_effect"), KNOWN)
def test_no_field_of_a_peer_is_ignored_unseen(
    kind: Any, fields: Iterable[str], unsupported: Any, no_effect: frozenset[str]
) -> None:
    handled = {*kind.__struct_fields__, *unsupported, *no_effect}
    assert not [name for name in fields if name not in handled]
    assert not set(kind.__struct_fields__) & {*unsupported, *no_effect}, "one of them is not true"


@pytest.mark.parametrize(
    ("path", "body", "unsupported"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, CHAT_UNSUPPORTED),
        ("/v1/completions", {"prompt": "x"}, COMPLETION_UNSUPPORTED),
        ("/v1/embeddings", {"input": "x"}, EMBEDDING_UNSUPPORTED),
        ("/v1/responses", {"input": "x"}, RESPONSES_UNSUPPORTED),
        ("/v1/score", {"text_1": "x", "text_2": "y"}, SCORING_UNSUPPORTED),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, SCORING_UNSUPPORTED),
        ("/tokenize", {"prompt": "x"}, TOKENIZING_UNSUPPORTED),
    ],
)
def test_what_is_not_carried_out_is_refused_by_name(
    client: FlaskClient, path: str, body: dict[str, Any], unsupported: Iterable[str]
) -> None:
    for name in unsupported:
        response = client.post(path, json={"model": "demo", **body, name: {"some": "value"}})
        error = response.get_json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)


CONVERSATION = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Well, "}]


def prompt_tokens(speaker: Speaker, **fields: object) -> int:
    return int(speaker.ask("x", **fields)["usage"]["prompt_tokens"])


def test_a_message_that_goes_on_is_left_open(speaker: Speaker) -> None:
    closed = prompt_tokens(speaker, messages=CONVERSATION, add_generation_prompt=False)
    assert prompt_tokens(speaker, messages=CONVERSATION, continue_final_message=True) < closed
    assert prompt_tokens(speaker, messages=CONVERSATION) > closed
    response = speaker.post("x", continue_final_message=True, add_generation_prompt=True)
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, "add_generation_prompt")


def test_a_prompt_is_cut_only_where_the_request_says_so_and_that_is_told(speaker: Speaker) -> None:
    whole = prompt_tokens(speaker)
    usage = speaker.ask("x", truncate_prompt_tokens=5)["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["truncated_tokens"]) == (5, whole - 5)
    long = [{"role": "user", "content": "word " * 700}]
    usage = speaker.ask("x", messages=long, truncate_prompt_tokens=-1, max_tokens=10)["usage"]
    assert usage["prompt_tokens"] == 502
    assert speaker.post("x", messages=long).status_code == 400
    assert "truncated_tokens" not in speaker.ask("x")["usage"]["prompt_tokens_details"]
    for wrong in (0, -2):
        assert speaker.post("x", truncate_prompt_tokens=wrong).get_json()["error"]["param"] == (
            "truncate_prompt_tokens"
        )


def test_completions_and_embeddings_are_cut_too(client: FlaskClient) -> None:
    body = {
        "model": "demo",
        "prompt": "one two three four five six",
        "truncate_prompt_tokens": 2,
        "echo": True,
    }
    answer = client.post("/v1/completions", json={**body, "max_tokens": 1}).get_json()
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"].endswith(" five six" + "w0 ")


def test_arguments_of_a_call_may_be_what_their_text_says(speaking: Any) -> None:
    speaker = speaking(
        "{% for m in messages %}{{ m.role }} {{ m.content }}{% for call in m.tool_calls or [] %}"
        "{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
    )

    def size(arguments: object) -> int:
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return prompt_tokens(
            speaker, messages=[CONVERSATION[0], {"role": "assistant", "tool_calls": [call]}, CONVERSATION[0]]
        )

    assert size({"city": "Paris", "days": [1, 2]}) == size('{"city": "Paris", "days": [1, 2]}')
    assert size({}) == size("{}") == size(None) == size("") < size({"city": "Paris"})
    assert speaker.post("x", messages=[{"role": "assistant", "tool_calls": 5}]).status_code == 400


def test_documents_and_effort_reach_the_template(speaking: Any) -> None:
    speaker = speaking(
        "{{ documents | tojson }}{% if reasoning_effort %} a {{ reasoning_effort }} effort{% endif %}"
    )
    bare = prompt_tokens(speaker)
    assert prompt_tokens(speaker, documents=[{"title": "a b c d", "text": "e f g h"}]) > bare + 8
    assert prompt_tokens(speaker, reasoning_effort="high") != bare


def test_what_a_template_refuses_is_told_in_its_own_words(speaking: Any) -> None:
    speaker = speaking(
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}x"
    )
    assert speaker.post("x").status_code == 200
    response = speaker.post("x", messages=[{"role": "system", "content": "brief"}, *CONVERSATION[:1]])
    error = response.get_json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (400, "messages", "invalid_request_error")
    assert "System role not supported" in error["message"]


def test_what_a_model_refused_is_part_of_its_turn(speaker: Speaker) -> None:
    said = {"role": "assistant", "content": "I will not."}
    part = {"type": "refusal", "refusal": "I will not."}
    whole = prompt_tokens(speaker, messages=[CONVERSATION[0], said, CONVERSATION[0]])
    for turn in (
        {"role": "assistant", "content": [part]},
        {"role": "assistant", "refusal": "I will not."},
        {**said, "refusal": None},
    ):
        assert prompt_tokens(speaker, messages=[CONVERSATION[0], turn, CONVERSATION[0]]) == whole
    heard = {"role": "assistant", "audio": {"id": "audio_1"}}
    error = speaker.post("x", messages=[CONVERSATION[0], heard]).get_json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages[1].audio")


def test_an_answer_has_the_id_that_the_request_chose(speaker: Speaker) -> None:
    assert speaker.ask("x", request_id="mine.1")["id"] == "chatcmpl-mine.1"
    assert speaker.post("x", request_id="a b").get_json()["error"]["param"] == "request_id"


@pytest.mark.parametrize("what", ["load", "unload"])
def test_who_would_load_an_adapter_is_told_what_does_it(client: FlaskClient, what: str) -> None:
    response = client.post(f"/v1/{what}_lora_adapter", json={"lora_name": "sql", "lora_path": "/sql"})
    assert response.status_code == 404
    message = response.json["error"]["message"]
    assert "an update, which names all that the model shall have: `trivet update NAME --adapter" in message
