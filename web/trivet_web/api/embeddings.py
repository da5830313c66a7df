"""POST /v1/embeddings: a vector for each text or list of token ids."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import msgspec
import numpy as np
from flask import Blueprint, Response

from trivet.errors import ContextLengthExceeded, GenerationError, RequestError
from trivet.messages import Submit
from trivet.pooling_params import PoolingParams
from trivet.sampling_params import SamplingParams
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.inference import Exchange, check_settings, closing_on_error, find_target
from trivet_web.api.model_fields import ModelFields
from trivet_web.api.prompt_items import Given, Item, items_of, token_ids_of
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import Integer, check_timeout
from trivet_web.api.truncation import truncated, truncation_of
from trivet_web.api.whole_answer import READ_S
from trivet_web.engines.mailbox import Arrival

blueprint = Blueprint("embeddings", __name__)
MAX_INPUTS = 2048  # OpenAI's
EMBEDDING_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "messages": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (False,),
    "mm_processor_kwargs": ({},),
    "request_id": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "use_activation": (True,),
}
MAX_AT_ONCE_BYTES = 256 << 10  # of vectors; more are written as the client takes them
_encode = msgspec.json.Encoder().encode
NO_DRAWS = SamplingParams(max_tokens=1)  # not used by a sequence that is embedded


class EmbeddingRequest(ModelFields, kw_only=True):
    """What is read of the body."""

    input: Given
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    pooling: str | None = None
    normalize: bool | None = None
    priority: Integer | None = None
    timeout: float | None = None  # seconds from the request's arrival
    cache_salt: str | None = None
    truncate_prompt_tokens: Integer | None = None
    add_special_tokens: bool | None = None

    def inputs(self) -> list[Item]:
        """Each by itself. Raises: RequestError."""
        items = items_of(self.input, "input")
        if len(items) > MAX_INPUTS:
            raise RequestError(f"input has {len(items)} items; at most {MAX_INPUTS} are read", param="input")
        return items

    def pooling_params(self) -> PoolingParams:
        """The engine checks them: it knows how many dimensions there are."""
        normalize = True if self.normalize is None else self.normalize
        return PoolingParams(pooling=self.pooling, normalize=normalize, dimensions=self.dimensions)


class EmbeddingObject(msgspec.Struct, frozen=True):
    """One vector: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """A whole answer."""

    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of one request, in its order: little-endian float32."""

    vectors: list[bytes]
    model: str
    num_tokens: int


@blueprint.post("/v1/embeddings")
@requires(Right.INFER)
@documented(EmbeddingList, body=EmbeddingRequest)
def create() -> Response:
    """A vector for each input, in their order. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(EmbeddingRequest)
    refuse_unsupported(EMBEDDING_UNSUPPORTED)
    embedded = embed(body)
    pieces = _pieces(embedded, as_numbers=body.encoding_format != "base64")
    if sum(map(len, embedded.vectors)) <= MAX_AT_ONCE_BYTES:
        return Response(b"".join(pieces), mimetype="application/json")
    return Response(pieces, mimetype="application/json")


def _pieces(embedded: Embedded, *, as_numbers: bool) -> Iterator[bytes]:
    """An `EmbeddingList`, a vector at a time: as numbers it takes ten times the memory of its vectors."""
    usage = EmbeddingUsage(embedded.num_tokens, embedded.num_tokens)
    before, after = _encode(EmbeddingList([], embedded.model, usage)).split(b"[]", 1)
    yield before + b"["
    for number, vector in enumerate(embedded.vectors):
        shown = numbers_of(vector) if as_numbers else base64.b64encode(vector).decode("ascii")
        yield (b"," if number else b"") + _encode(EmbeddingObject(number, shown))
    yield b"]" + after


def embed(body: EmbeddingRequest, *, keeps_start: bool = False) -> Embedded:
    """Send all inputs, and wait.

    Args:
        keeps_start: of an input that is cut, with the mark that its model wants at the end.

    Raises: RequestError, Unavailable, EngineLost.
    """
    inputs, pooling = body.inputs(), body.pooling_params()
    check_timeout(body.timeout)
    check_settings(NO_DRAWS, body.cache_salt, len(inputs), "input")
    truncation = truncation_of(body.truncate_prompt_tokens, 0)
    target = find_target(body.model_name)
    with closing_on_error(Exchange(target, "embd", holds_thread=True)) as exchange:
        adds_special = body.add_special_tokens is not False
        whole = token_ids_of(target, inputs, "input", adds_special=adds_special)
        ends = target.model.tokenizer.special_ids if keeps_start else None
        token_ids = [truncated(ids, truncation, target.max_model_len, ends) for ids in whole]
        _check_lengths(token_ids, target.max_model_len)
        submits = [
            Submit(
                f"{exchange.id}-{number}",
                ids,
                NO_DRAWS,
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
                pooling=pooling,
                deadline_s=exchange.deadline_s(body.timeout),
            )
            for number, ids in enumerate(token_ids)
        ]
        exchange.submit(submits)
        vectors = _read_all(exchange)
        exchange.close()
    return Embedded(vectors, target.id, sum(map(len, token_ids)))


def _check_lengths(token_ids: list[list[int]], max_model_len: int) -> None:
    """Raises: ContextLengthExceeded naming the input."""
    for number, ids in enumerate(token_ids):
        if len(ids) > max_model_len:
            path = "input" if len(token_ids) == 1 else f"input[{number}]"
            raise ContextLengthExceeded(
                f"{path} has {len(ids)} tokens and the context holds {max_model_len}; shorten it", param=path
            )


def _read_all(exchange: Exchange) -> list[bytes]:
    """Wait for every vector. Raises: what ended one of them early."""
    arrivals: list[Arrival] = []
    while exchange.answer.num_open:
        arrivals += exchange.answer.read(READ_S)
    vectors = [arrival.piece.embedding for arrival in sorted(arrivals, key=attrgetter("choice"))]
    if None in vectors:
        raise GenerationError("the engine ended a text before it was embedded; send it again")
    return [vector for vector in vectors if vector is not None]


def numbers_of(vector: bytes) -> list[float]:
    """Of little-endian float32."""
    numbers: list[float] = np.frombuffer(vector, "<f4").tolist()
    return numbers
