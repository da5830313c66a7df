"""Ollama's `options`, as fields of our requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet_web.api.sampling_fields import Integer

# How an error of ours names what is an option here.
NAMES = {
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "response_format.json_schema.schema": "format",
}
# Where a model runs and how much it holds is said when it is launched; num_keep is of a context that shifts.
WITHOUT_EFFECT = frozenset(
    {
        *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram"),
        *("f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only"),
    }
)
# What is not carried out, with the values that change nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "mirostat_tau": (5,),
    "mirostat_eta": (0.1,),
    "tfs_z": (1,),
    "typical_p": (1,),
    "penalize_newline": (True,),
    "repeat_last_n": (64, -1, 0),  # the penalty looks at all of prompt and answer
    "draft_num_predict": (0,),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Those that are carried out."""

    num_predict: Integer | None = None
    temperature: float | None = None
    top_k: Integer | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    def fields(self) -> dict[str, Any]:
        """As our requests name them. Raises: RequestError."""
        predict = self.num_predict
        if predict is not None and predict < -2:
            raise RequestError(
                f"options.num_predict is {predict}; it must be a number of tokens, or 0, -1 or -2 (no limit)",
                param="options.num_predict",
            )
        return {
            "max_tokens": None if predict is None or predict <= 0 else predict,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": None if self.repeat_last_n == 0 else self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "stop": self.stop,
        }


def read_options(given: Mapping[str, Any] | None, defaults: Mapping[str, Any] | None = None) -> Options:
    """`defaults` are those of a created model. Raises: RequestError naming the option."""
    merged = {**(defaults or {}), **{k: v for k, v in (given or {}).items() if v is not None}}
    for name, neutral in _UNSUPPORTED.items():
        value = merged.get(name)
        if value is not None and not any(value == one for one in neutral):
            instead = "send 64, -1 or 0" if name == "repeat_last_n" else "leave it out"
            raise UnsupportedParameter(
                f"options.{name} is {str(value)[:80]}; this version does not carry it out: {instead}",
                param=f"options.{name}",
            )
    try:
        return msgspec.convert(merged, Options)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        field = place.rstrip("`") or "options"
        raise RequestError(
            f"options.{field} is wrong: {what[0].lower()}{what[1:]}".replace("`", ""),
            param=f"options.{field}",
        ) from error
