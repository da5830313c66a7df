"""Bodies of `/generate` and `/generate_stream`, and the completion that they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.completions import CompletionRequest
from trivet_web.api.sampling_fields import Integer
from trivet_web.api.structured_fields import StructuredOutputs

DEFAULT_MAX_NEW_TOKENS = 100  # TGI's
# How an error of the completion names what is one of the parameters here.
NAMES = {
    **{name: f"parameters.{name}" for name in ("temperature", "top_k", "top_p", "seed", "stop")},
    **{name: f"parameters.{name}" for name in ("repetition_penalty", "frequency_penalty")},
    "max_tokens": "parameters.max_new_tokens",
    "prompt": "inputs",
    "logprobs": "parameters.top_n_tokens",
    "truncate_prompt_tokens": "parameters.truncate",
    "structured_outputs": "parameters.grammar",
    "structured_outputs.json": "parameters.grammar.value",
    "structured_outputs.regex": "parameters.grammar.value",
    "lora_name": "parameters.adapter_id",
}
# What is not carried out, with the values that change nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "watermark": (False,),
    "typical_p": (1,),
}
_GRAMMARS = {"json": "json", "json_schema": "json", "regex": "regex"}


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer."""

    type: str
    value: str | dict[str, Any]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """How it shall be written. Without `do_sample` and everything that draws, the likeliest tokens."""

    do_sample: bool | None = None
    max_new_tokens: Integer | None = None
    temperature: float | None = None
    top_k: Integer | None = None
    top_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    truncate: Integer | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: Integer | None = None
    grammar: Grammar | None = None
    best_of: Integer | None = None
    watermark: bool | None = None
    adapter_id: str | None = None

    def check(self, *, is_streamed: bool) -> None:
        """Raises: RequestError, UnsupportedParameter."""
        for name, neutral in _UNSUPPORTED.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise UnsupportedParameter(
                    f"parameters.{name} is {value!r}; this version does not carry it out: leave it out",
                    param=f"parameters.{name}",
                )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise RequestError(
                f"parameters.max_new_tokens is {self.max_new_tokens}; it must be an integer >= 1",
                param="parameters.max_new_tokens",
            )
        if is_streamed and self.decoder_input_details:
            raise RequestError(
                "parameters.decoder_input_details is not part of a stream; leave it or the stream out",
                param="parameters.decoder_input_details",
            )

    @property
    def draws(self) -> bool:
        return bool(self.do_sample) or any(
            one is not None for one in (self.temperature, self.top_k, self.top_p)
        )

    def structured_outputs(self) -> StructuredOutputs | None:
        """Raises: UnsupportedParameter."""
        if self.grammar is None:
            return None
        kind = _GRAMMARS.get(self.grammar.type)
        if kind is None:
            raise UnsupportedParameter(
                f"parameters.grammar.type is {self.grammar.type[:80]!r}; it must be {', '.join(_GRAMMARS)}",
                param="parameters.grammar.type",
            )
        value = self.grammar.value
        if kind == "regex" and not isinstance(value, str):
            raise RequestError(
                "parameters.grammar.value is an object; a regex is text", param="parameters.grammar.value"
            )
        if kind == "json" and isinstance(value, dict) and set(value) == {"name", "schema"}:
            value = value["schema"]
        return msgspec.convert({kind: value}, StructuredOutputs)


class GenerateRequest(msgspec.Struct, kw_only=True):
    """What is read of the body. `model` is ours: it may be left out where one is deployed."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool | None = None
    model: str | None = None

    def completion(self, model: str, *, is_streamed: bool) -> CompletionRequest:
        """The same as a completion. Raises: RequestError, UnsupportedParameter."""
        given = self.parameters or Parameters()
        given.check(is_streamed=is_streamed)
        limit = given.max_new_tokens
        return CompletionRequest(
            model=model,
            prompt=self.inputs,
            stream=is_streamed,
            max_tokens=DEFAULT_MAX_NEW_TOKENS if limit is None else limit,
            temperature=given.temperature if given.draws else 0.0,
            top_k=given.top_k,
            top_p=given.top_p,
            repetition_penalty=given.repetition_penalty,
            frequency_penalty=given.frequency_penalty,
            seed=given.seed,
            stop=given.stop,
            include_stop_str_in_output=True,  # as TGI's texts do
            truncate_prompt_tokens=given.truncate,
            logprobs=given.top_n_tokens or 0,
            prompt_logprobs=0 if given.decoder_input_details else None,
            structured_outputs=given.structured_outputs(),
            lora_name=given.adapter_id,
        )
