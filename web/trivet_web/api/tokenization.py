"""/tokenize, /detokenize and /tokenizer_info, vLLM's: between text and token ids, by a model's tokenizer."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, request

from trivet.errors import RequestError
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.chat_prompt import ChatPromptFields
from trivet_web.api.conversation import Message, for_template
from trivet_web.api.documented import documented
from trivet_web.api.inference import Target
from trivet_web.api.model_fields import AdapterFields
from trivet_web.api.request_body import read_body, refuse_unsupported
from trivet_web.api.sampling_fields import Integer
from trivet_web.api.tools import Tool
from trivet_web.json_response import json_response
from trivet_web.models.model_names import check_known, meant_by
from trivet_web.models.visible_models import visible
from trivet_web.web_process import web_process

blueprint = Blueprint("tokenization", __name__)
UNSUPPORTED: dict[str, tuple[object, ...]] = {"mm_processor_kwargs": ({},), "media_io_kwargs": ({},)}


class TokenizeRequest(AdapterFields, kw_only=True):
    """A text, or the messages of a chat."""

    model: str | None = None  # may be left out where one model is deployed
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids of one model."""

    tokens: list[Integer]
    model: str | None = None
    skip_special_tokens: bool | None = None


class TokenizeResponse(msgspec.Struct, frozen=True):
    """The ids, and if asked for each token as it reads alone."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """The text of them all."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True):
    """What clients that tokenise by this server ask first; names are those of tokenizer_config.json."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    model_max_length: int
    tokenizer_class: str = "PreTrainedTokenizerFast"


@blueprint.post("/tokenize")
@requires(Right.INFER)
@documented(TokenizeResponse, body=TokenizeRequest)
def tokenize() -> Response:
    """Token ids of a text or of a chat's prompt. Raises: RequestError, ModelNotFound, ModelFilesError."""
    body = read_body(TokenizeRequest)
    refuse_unsupported(UNSUPPORTED)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("send either prompt or messages", param="prompt")
    target = _tokenizing(body.model, body)
    if body.messages is not None:
        ids = _chat_ids(target, body, body.messages)
    else:
        (ids,) = web_process().prompts.encode(
            target.model,
            [body.prompt or ""],
            target.max_model_len,
            "prompt",
            add_special_tokens=body.add_special_tokens is not False,
        )
    tokenizer = target.model.tokenizer
    texts = [tokenizer.token_text(one) for one in ids] if body.return_token_strs else None
    return json_response(TokenizeResponse(len(ids), target.max_model_len, ids, texts))


@blueprint.post("/detokenize")
@requires(Right.INFER)
@documented(DetokenizeResponse, body=DetokenizeRequest)
def detokenize() -> Response:
    """Text of token ids. Raises: RequestError, ModelNotFound, ModelFilesError."""
    body = read_body(DetokenizeRequest)
    target = _tokenizing(body.model)
    num_tokens = target.model.num_tokens
    for index, token_id in enumerate(body.tokens):
        if not 0 <= token_id < num_tokens:
            raise RequestError(
                f"tokens[{index}] is {token_id}; ids go from 0 to {num_tokens - 1}", param=f"tokens[{index}]"
            )
    text = target.model.tokenizer.decode(body.tokens, bool(body.skip_special_tokens))
    return json_response(DetokenizeResponse(text))


@blueprint.get("/tokenizer_info")
@requires(Right.INFER)
@documented(TokenizerInfo, query={"model": str})
def tokenizer_info() -> Response:
    """The marks of a tokenizer, and its model's chat template. Raises: RequestError, ModelNotFound."""
    target = _tokenizing(request.args.get("model"))
    tokenizer, template = target.model.tokenizer, target.model.template
    return json_response(
        TokenizerInfo(
            tokenizer.bos_token,
            tokenizer.eos_token,
            None if template is None else template.source,
            target.max_model_len,
        )
    )


def target_of(name: str | None, beside: AdapterFields | None = None) -> Target:
    """An engine need not be ready. `beside` may name an adapter.

    Raises: RequestError, ModelNotFound, ModelFilesError.
    """
    process = web_process()
    if name is None:
        table = visible(process.router.table())
        if len(table) != 1:
            known = ", ".join(sorted(table)) or "none"
            raise RequestError(f"model is missing; name one of those deployed: {known}", param="model")
        (name,) = table
    meant = meant_by(name) if beside is None else beside.with_adapters(meant_by(name))
    deployed = check_known(meant)
    return Target(deployed, process.models.get(deployed.files), meant.adapter)


def _tokenizing(name: str | None, beside: AdapterFields | None = None) -> Target:
    """Without a name any deployment will do where all are of one model. Raises: as `target_of`."""
    table = visible(web_process().router.table())
    if name is None and len({deployed.files for deployed in table.values()}) == 1:
        return target_of(min(table), beside)
    return target_of(name, beside)


def _chat_ids(target: Target, body: TokenizeRequest, messages: list[Message]) -> list[int]:
    fields = ChatPromptFields(
        model=target.deployed.name,
        messages=messages,
        tools=body.tools,
        add_special_tokens=body.add_special_tokens,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        documents=body.documents,
        reasoning_effort=body.reasoning_effort,
    )
    fields.check_prompt()
    form = AnswerForm.of(target, fields.tool_use())
    text = fields.render(target, *form.prompt_messages(for_template(messages)))
    return fields.encode(target, text, None).token_ids
