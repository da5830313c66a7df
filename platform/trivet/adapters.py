"""Which adapters (LoRA) an instance gets, and a request names: our setting, and vLLM's forms of both.

An adapter is a folder of PEFT under a name; `models/adapter_files.py` reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trivet.errors import ConfigError, RequestError, UnsupportedParameter

NO_MODEL = "is an adapter (LoRA), not a model: launch the model that it adapts, with --set adapters=NAME="
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # as the name of a model
DEFAULT_RANK, MAX_RANK = 16, 512  # of slots that are kept free; vLLM's default and its largest
_NOTHING = ("false", "none", "null", "")
# vLLM's names of what is not done here: what does nothing may be said, anything else is refused.
_REFUSED = {
    "max_cpu_loras": ("", "every adapter is kept on the device: leave it unset"),
    "lora_dtype": ("auto", "adapters are computed in the model's dtype: leave it unset"),
    "lora_extra_vocab_size": ("0", "an adapter adds no tokens: leave it unset"),
    "long_lora_scaling_factors": ("", "an adapter does not change the context: leave it unset"),
    "fully_sharded_loras": ("", "each rank holds its part of an adapter as of the weights: leave it unset"),
    "default_mm_loras": ("", "no model here takes images or sound: leave it unset"),
    "enable_prompt_adapter": ("", "prompt adapters are not served, adapters of weights (LoRA) are"),
    "max_prompt_adapters": ("0", "prompt adapters are not served, adapters of weights (LoRA) are"),
    "max_prompt_adapter_token": ("0", "prompt adapters are not served, adapters of weights (LoRA) are"),
}

_BOTH = "adapters and lora_modules are both given and are the same setting; give one"


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by vLLM's names, for `LLM.generate(..., lora_request=)`.

    The name says which; a path loads it first, where the engine does not have it yet. The number is vLLM's
    own and has no meaning here.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


def requested_adapter(lora_request: object) -> LoRARequest | None:
    """A name, a `LoRARequest` or vLLM's own object of that shape; None and "" are the base model.

    Raises: UnsupportedParameter.
    """
    if lora_request is None or lora_request == "":
        return None
    if isinstance(lora_request, LoRARequest) and lora_request.lora_name:
        return lora_request
    if isinstance(lora_request, str):
        return LoRARequest(lora_request)
    name, path = getattr(lora_request, "lora_name", None), getattr(lora_request, "lora_path", None)
    if not isinstance(name, str) or not name:
        raise UnsupportedParameter(
            f"lora_request is {str(lora_request)[:80]}; give the name of an adapter, or a LoRARequest",
            param="lora_request",
        )
    return LoRARequest(name, lora_path=str(path or ""))


def adapter_per_prompt(given: object, count: int) -> list[LoRARequest | None]:
    """One for all, or one each. Raises: RequestError."""
    if not isinstance(given, list | tuple):
        return [requested_adapter(given)] * count
    if len(given) != count:
        raise RequestError(
            f"{len(given)} of lora_request for {count} prompts; give one for all, or one each",
            param="lora_request",
        )
    return [requested_adapter(one) for one in given]


def parse_adapters(text: str, setting: str = "adapters") -> dict[str, str]:
    """Folders by name, of `NAME=FOLDER,NAME=FOLDER`, a JSON object of them, or vLLM's JSON of name and path.

    Raises: ConfigError.
    """
    text = text.strip()
    pairs = _json_pairs(text, setting) if text[:1] in ("{", "[") else _plain_pairs(text)
    found: dict[str, str] = {}
    for name, folder in pairs:
        if not folder:
            raise ConfigError(f"{setting} is {text[:200]!r}; write NAME=FOLDER,NAME=FOLDER, or a JSON object")
        if not ADAPTER_NAME.fullmatch(name):
            raise ConfigError(
                f"{setting}: an adapter's name is {name[:200]!r}; use letters, digits, '.', '_' and '-', "
                "128 at most, beginning with a letter or digit"
            )
        if name == "latest":
            raise ConfigError(
                f"{setting}: an adapter's name is 'latest', which is the model itself to clients of Ollama; "
                "give it another"
            )
        if name in found:
            raise ConfigError(f"{setting}: two adapters have the name {name!r}; give each its own")
        found[name] = folder
    return found


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written."""


def _plain_pairs(text: str) -> Iterator[tuple[str, str]]:
    """By commas, or by spaces as vLLM's command line has them."""
    for part in re.split(r",|\s+(?=[^\s=,/]+=)", text):
        if part.strip():
            name, _, folder = part.strip().partition("=")
            yield name.strip(), folder.strip()


def _json_pairs(text: str, setting: str) -> Iterator[tuple[str, str]]:
    try:
        given = json.loads(text, object_pairs_hook=_Pairs)  # a name that is there twice is refused, too
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{setting} is {text[:200]!r}, which is no JSON ({error})") from None
    for one in given if type(given) is list else [given]:
        fields = dict(one) if isinstance(one, _Pairs) else {}
        if isinstance(fields.get("name"), str) and isinstance(fields.get("path"), str):
            yield fields["name"], fields["path"]
        elif isinstance(one, _Pairs) and all(isinstance(folder, str) for _, folder in one):
            yield from one
        else:
            raise ConfigError(
                f'{setting} is {text[:200]!r}; write {{"NAME": "FOLDER"}}, or '
                '{"name": "NAME", "path": "FOLDER"}'
            )


def spelled_adapters(adapters: Mapping[str, str]) -> str:
    """As `parse_adapters` reads it."""
    if any(re.search(r"[,\s=]", folder) for folder in adapters.values()):
        return json.dumps(dict(adapters))
    return ",".join(f"{name}={folder}" for name, folder in adapters.items())


def with_one_spelling(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Settings to be kept: adapters under our name, as `spelled_adapters` has them. None takes one back.

    Raises: ConfigError.
    """
    kept, setting = dict(given), "adapters"
    if "lora_modules" in kept:
        modules = kept.pop("lora_modules")
        if not _is_given(modules):
            kept.setdefault("adapters", modules)
        elif _is_given(kept.get("adapters")):
            raise ConfigError(_BOTH)
        else:
            kept["adapters"], setting = modules, "lora_modules"
    if (adapters := kept.get("adapters")) and _is_given(adapters):
        kept["adapters"] = spelled_adapters(parse_adapters(adapters, setting))
    return kept


def _is_given(value: str | None) -> bool:
    return value is not None and value.lower() not in _NOTHING


def with_own_adapter_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of an engine, with vLLM's of adapters put into `adapters`, `max_loras` and `max_lora_rank`.

    Raises: ConfigError for one that would mean something else.
    """
    own = dict(given)
    for name, (harmless, reason) in _REFUSED.items():
        value = own.pop(name, "")
        if value.lower() not in (*_NOTHING, harmless):
            raise ConfigError(f"{name} is {value!r}; {reason}")
    modules = own.pop("lora_modules", "")
    if modules.lower() not in _NOTHING:
        if own.get("adapters", "").lower() not in _NOTHING:
            raise ConfigError(_BOTH)
        own["adapters"] = spelled_adapters(parse_adapters(modules, "lora_modules"))
    wanted = [name for name in ("adapters", "max_loras") if own.get(name, "").lower() not in _NOTHING]
    enabled = own.pop("enable_lora", None)
    if enabled is not None and enabled.lower() not in ("true", "1", *_NOTHING):
        raise ConfigError(f"enable_lora is {enabled!r}; it must be true or false")
    if enabled is not None and enabled.lower() in _NOTHING and wanted:
        raise ConfigError(f"enable_lora is {enabled!r} and {wanted[0]} is given; leave enable_lora unset")
    if enabled is not None and enabled.lower() in ("true", "1") and not wanted:
        own["max_loras"] = "1"  # vLLM's default: one slot, for an adapter that comes later
    return own
