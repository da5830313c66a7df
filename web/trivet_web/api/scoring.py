"""POST /v1/score and /v1/rerank: how well documents answer a query, by a model that says yes or no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from flask import Blueprint, Response

from trivet.errors import RequestError
from trivet.messages import Submit
from trivet.outputs import yes_probability
from trivet.prompt_forms import text_pairs
from trivet.sampling_params import SamplingParams
from trivet.text.scoring_prompt import QWEN3_INSTRUCTION, QWEN3_RERANKER, ScoringPrompt, single_token
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.inference import Exchange, Target, check_settings, closing_on_error, find_target
from trivet_web.api.model_fields import ModelFields
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import Integer, check_context, check_timeout
from trivet_web.api.truncation import truncated, truncation_of
from trivet_web.api.whole_answer import read_whole
from trivet_web.json_response import json_response
from trivet_web.models.prompt_encoder import size_of
from trivet_web.web_process import web_process

blueprint = Blueprint("scoring", __name__)
MAX_DOCUMENTS = 2048
Pairs = list[tuple[str, str]]
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "mm_processor_kwargs": ({},),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "max_chunks_per_doc": (10,),  # Cohere's default; a document is read whole here
    "rank_fields": ([], ["text"]),
    "truncation": (False,),
    "activation": (True,),
    "use_activation": (True,),
    "softmax": (True,),
    "request_id": (),
}


class ScoringFields(ModelFields, kw_only=True):
    """What both requests have."""

    instruction: str | None = None  # None: that of Qwen3-Reranker's card
    truncate_prompt_tokens: Integer | None = None
    priority: Integer | None = None
    timeout: float | None = None  # seconds from the request's arrival
    cache_salt: str | None = None


Texts = str | list[str] | None


class ScoreRequest(ScoringFields, kw_only=True):
    """vLLM's: one text with each of others, or pair by pair. It has three names for them."""

    text_1: Texts = None
    text_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    data_1: Texts = None
    data_2: Texts = None
    encoding_format: Literal["float"] | None = None

    def pairs(self) -> tuple[Pairs, str]:
        """And the name of the second field. Raises: RequestError."""
        names = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
        given = [one for one in names if any(getattr(self, name) is not None for name in one)]
        if len(given) > 1:
            raise RequestError(
                f"{given[0][0]} and {given[1][0]} are given; send one of them", param=given[1][0]
            )
        first, second = given[0] if given else names[0]
        for name in (first, second):
            if getattr(self, name) is None:
                raise RequestError(f"{name} is missing; it is required", param=name)
        return text_pairs(getattr(self, first), getattr(self, second)), second


class DocumentObject(msgspec.Struct, frozen=True):
    """A document as Jina's and Cohere's clients write one."""

    text: str


class RerankRequest(ScoringFields, kw_only=True):
    """Jina's and Cohere's."""

    query: str
    documents: Annotated[list[str | DocumentObject], msgspec.Meta(min_length=1)]
    top_n: Integer | None = None  # None and 0: all
    return_documents: bool | None = None


class ScoreObject(msgspec.Struct, frozen=True):
    """The probability of yes for one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoringUsage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    total_tokens: int


class ScoreList(msgspec.Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    data: list[ScoreObject]
    usage: ScoringUsage
    object: Literal["list"] = "list"


class RankedDocument(msgspec.Struct, frozen=True):
    """One document; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: DocumentObject | msgspec.UnsetType = msgspec.UNSET


class RerankResponse(msgspec.Struct, frozen=True):
    """The best documents first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: ScoringUsage


@dataclass(frozen=True, slots=True)
class Scores:
    """Of one request, in its order."""

    exchange: Exchange
    values: list[float]
    usage: ScoringUsage


@blueprint.post("/v1/score")
@blueprint.post("/score")
@requires(Right.INFER)
@documented(ScoreList, body=ScoreRequest)
def score() -> Response:
    """A score for each pair, in their order. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(ScoreRequest)
    refuse_unsupported(UNSUPPORTED)
    scores = _scores(body, *body.pairs())
    exchange = scores.exchange
    data = [ScoreObject(index, value) for index, value in enumerate(scores.values)]
    return json_response(ScoreList(exchange.id, exchange.created, exchange.target.id, data, scores.usage))


@blueprint.post("/v1/rerank")
@blueprint.post("/v2/rerank")
@blueprint.post("/rerank")
@requires(Right.INFER)
@documented(RerankResponse, body=RerankRequest)
def rerank() -> Response:
    """Documents by how well they answer. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(RerankRequest)
    refuse_unsupported(UNSUPPORTED)
    if body.top_n is not None and body.top_n < 0:
        raise RequestError(
            f"top_n is {body.top_n}; it must be a number of documents, or 0 for all", param="top_n"
        )
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    scores = _scores(body, [(body.query, text) for text in texts], "documents")
    ranked = sorted(range(len(texts)), key=lambda index: -scores.values[index])
    shows = body.return_documents is not False
    results = [
        RankedDocument(index, scores.values[index], DocumentObject(texts[index]) if shows else msgspec.UNSET)
        for index in ranked[: body.top_n or None]
    ]
    exchange = scores.exchange
    return json_response(RerankResponse(exchange.id, exchange.target.id, results, scores.usage))


def _scores(body: ScoringFields, pairs: Pairs, field: str) -> Scores:
    """Raises: RequestError, Unavailable, EngineLost."""
    if not 1 <= len(pairs) <= MAX_DOCUMENTS:
        raise RequestError(f"{field} has {len(pairs)} texts; send 1 to {MAX_DOCUMENTS}", param=field)
    check_timeout(body.timeout)
    truncation = truncation_of(body.truncate_prompt_tokens, 1)
    target = find_target(body.model_name)
    yes_id, no_id = _answers(target)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, logprob_token_ids=(yes_id, no_id))
    check_settings(params, body.cache_salt, len(pairs), field)
    with closing_on_error(Exchange(target, "score", holds_thread=True)) as exchange:
        prompts = _prompts(target, pairs, body.instruction or QWEN3_INSTRUCTION, field)
        prompts = [truncated(ids, truncation, target.max_model_len) for ids in prompts]
        for ids in prompts:
            check_context(len(ids), 1, target.max_model_len, field)
        exchange.submit(_submits(exchange, prompts, params, body))
        done = read_whole(exchange)
        exchange.close()
    values = [yes_probability(dict(one.logprobs[0].top), yes_id, no_id) for one in done]
    num_tokens = sum(map(len, prompts))
    return Scores(exchange, values, ScoringUsage(num_tokens, num_tokens))


def _answers(target: Target) -> tuple[int, int]:
    """Tokens of yes and no. Raises: RequestError for a model that cannot be asked so."""
    tokenizer = target.model.tokenizer
    if tokenizer.id_of("<|im_start|>") is None:
        raise RequestError(
            f"model {target.deployed.name!r} cannot score: its vocabulary lacks the marks of the prompt; use "
            "a model that answers yes or no, such as Qwen3-Reranker",
            param="model",
        )
    return single_token(tokenizer, "yes"), single_token(tokenizer, "no")


def _prompts(target: Target, pairs: Pairs, instruction: str, field: str) -> list[list[int]]:
    """What is the same in all is counted with each, before any of them is put together."""
    around = size_of(instruction)
    query_sizes = {query: size_of(query) for query in {query for query, _ in pairs}}
    sizes = [around + query_sizes[query] + size_of(document) for query, document in pairs]
    prompt = ScoringPrompt(QWEN3_RERANKER, target.model.tokenizer)
    with web_process().prompts.turn(target.model, sizes, target.max_model_len, field):
        return prompt.token_ids(pairs, instruction)


def _submits(
    exchange: Exchange, prompts: Sequence[list[int]], params: SamplingParams, body: ScoringFields
) -> list[Submit]:
    common: dict[str, Any] = {
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt or "",
        "deadline_s": exchange.deadline_s(body.timeout),
    }
    return [Submit(f"{exchange.id}-{number}", ids, params, **common) for number, ids in enumerate(prompts)]
