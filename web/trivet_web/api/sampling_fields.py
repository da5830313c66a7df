"""The fields that requests for text share, and the `SamplingParams` they make."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from trivet.errors import ContextLengthExceeded, RequestError
from trivet.sampling_params import MAX_STOP_STRINGS, SamplingParams
from trivet_web.api.structured_fields import StructuredFields
from trivet_web.request_name import FORM as REQUEST_NAME

# Bounded, so that no number of a request is too big for the wire.
Integer = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

# What peers carry out and we do not, with the values that change nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "structural_tag": (),
    "guided_decoding_backend": ("auto",),
    "guided_json_object": (False,),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "detokenize": (True,),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "repetition_detection": (),
    # SGLang's.
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "ebnf": ("",),
    "no_stop_trim": (False,),
    "regex": ("",),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "session_params": ({},),
    "stop_regex": ([],),
    "stream_reasoning": (True,),
    # Of llama.cpp's server: what shapes its answer; what says how is for those that are on.
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "json_schema": ({},),
    "mirostat": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "repeat_penalty": (1,),
    "samplers": ([],),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}

# What is taken and cannot change an answer: whose request it is, and hints about caches and speed.
WITHOUT_EFFECT = frozenset(
    {
        *("user", "safety_identifier", "metadata"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prediction"),
        "spaces_between_special_tokens",  # no detokenizer of ours puts any
    }
)


# Fields of the request that are a parameter of the same name.
_AS_THEY_ARE = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)


class UsageInStream(StrEnum):
    """Which chunks of a stream have the counts; LAST: one of its own."""

    NONE = "none"
    LAST = "last"
    ALWAYS = "always"


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a streamed request."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI's, against who listens to lengths: nothing is added
    continuous_usage_stats: bool | None = None  # vLLM's: the counts so far with every chunk


class SamplingFields(StructuredFields, kw_only=True):
    """OpenAI's names, and vLLM's where OpenAI has none."""

    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Integer, float] | None = None
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None  # SamplingParams bounds it
    min_tokens: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Integer | None = None
    timeout: float | None = None  # seconds from the request's arrival
    cache_salt: str | None = None
    truncate_prompt_tokens: Integer | None = None

    def check(self) -> None:
        """Raises: RequestError for a value that no type forbids."""
        check_timeout(self.timeout)
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are taken", param="stop"
            )


class CompletionFields(SamplingFields, kw_only=True):
    """What chats and completions have beside them, and `/v1/responses` has not."""

    stream_options: StreamOptions | None = None
    n: Integer | None = None
    max_tokens: Integer | None = None
    prompt_logprobs: Integer | None = None
    request_id: str | None = None

    def check(self) -> None:
        """Raises: RequestError for a value or a combination that no type forbids."""
        super().check()
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options is given without stream; set stream true", param="stream_options"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs are not part of a stream; leave them or stream out", param="prompt_logprobs"
            )
        if self.request_id is not None and not REQUEST_NAME.fullmatch(self.request_id):
            raise RequestError(
                f"request_id is {self.request_id[:80]!r}; it must have 1 to 64 letters, digits, '.', '_' "
                "or '-'",
                param="request_id",
            )

    @property
    def usage_in_stream(self) -> UsageInStream:
        """As vLLM has it, `continuous_usage_stats` alone asks for nothing."""
        options = self.stream_options
        if options is None or not options.include_usage:
            return UsageInStream.NONE
        return UsageInStream.ALWAYS if options.continuous_usage_stats else UsageInStream.LAST

    def sampling_params(
        self, defaults: Mapping[str, float], max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """`defaults` are the model's own; what the request says goes first.

        Raises: RequestError naming the field and the values that would do.
        """
        given: dict[str, Any] = {
            name: value for name in _AS_THEY_ARE if (value := getattr(self, name)) is not None
        }
        defaults = {k: int(v) if k == "top_k" else v for k, v in defaults.items()}
        params = SamplingParams(
            **{**defaults, **given},
            max_tokens=max_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            logprobs=logprobs,
            structured_outputs=self.structured_outputs_params(),
        )
        params.check()
        return params


def public_id(kind: str, wanted: str | None, own: str) -> str:
    """The id of an answer: vLLM lets a request choose it."""
    return own if wanted is None else f"{kind}-{wanted}"


def check_timeout(timeout_s: float | None) -> None:
    """Raises: RequestError."""
    if timeout_s is not None and not timeout_s > 0:
        raise RequestError(f"timeout is {timeout_s}; it must be seconds, more than 0", param="timeout")


def check_context(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, param: str) -> None:
    """Raises: ContextLengthExceeded with the numbers."""
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens and the context holds {max_model_len}, "
            "at least one of them for the completion; shorten the prompt",
            param=param,
        )
    if max_tokens is not None and num_prompt_tokens + max_tokens > max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt_tokens} tokens, max_tokens is {max_tokens} and the context holds "
            f"{max_model_len}; lower max_tokens to {max_model_len - num_prompt_tokens} or shorten the prompt",
            param="max_tokens",
        )
