"""Rotary settings of a Hugging Face config, in both of the forms in use.

transformers 4 writes `rope_theta` and `rope_scaling`; transformers 5 writes one dictionary,
`rope_parameters`. The type stands under `rope_type`, in older files under `type`.
"""

from __future__ import annotations

import math
from typing import Any

from trivet.errors import ModelFilesError, UnsupportedArchitecture
from trivet.models.architectures.config_values import ConfigValues
from trivet.models.spec import Rope

DEFAULT_THETA = 10_000.0
MAX_POSITION = 1 << 32
ALIASES = {"default": "none", "su": "longrope"}


def read_rope(values: ConfigValues, head_dim: int, default_max_position: int) -> tuple[Rope, int]:
    """The rope of a config and the longest context that it is made for.

    Raises: ModelFilesError; UnsupportedArchitecture for a type, or a use by layer, that Rope cannot state.
    """
    configured = values.integer("max_position_embeddings", default_max_position, most=MAX_POSITION)
    settings = _settings(values)
    written = settings.get("rope_type") or settings.get("type") or "default"
    kind = ALIASES.get(str(written), str(written))
    theta = settings.positive("rope_theta", DEFAULT_THETA)
    if kind == "none":
        return Rope(head_dim, theta), configured
    readers = {
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
    }
    if kind not in readers:
        raise UnsupportedArchitecture(
            f"{values.source}: rope type {str(written)[:40]!r} is not one of default, {', '.join(readers)}: "
            "only transformers can run this model"
        )
    original = _original_max_len(values, settings, configured)
    rope = readers[kind](settings, head_dim, theta, configured, original)
    return rope, max_position(rope, configured)


def max_position(rope: Rope, configured: int) -> int:
    """The longest context that a scaled rope is made for; `configured` is what the file states.

    linear and yarn files state the length before scaling. dynamic stays at the stated length, where it equals
    the unscaled rope and transformers; an operator may choose a longer max_model_len.
    """
    if rope.scaling == "linear":
        return math.floor(configured * rope.factor)
    if rope.scaling == "yarn":
        return math.floor(rope.original_max_len * rope.factor)
    return configured


def _settings(values: ConfigValues) -> ConfigValues:
    """The dictionary of whichever form, with theta inside."""
    found: Any = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(found, dict):
        raise values.wrong("rope_scaling", "an object")
    if any(isinstance(value, dict) for value in found.values()):
        raise UnsupportedArchitecture(
            f"{values.source}: rope_parameters differ by layer type ({', '.join(sorted(map(str, found)))}), "
            "which this architecture's spec cannot state: only transformers can run this model"
        )
    theta = values.get("rope_theta")
    merged = found if found.get("rope_theta") is not None or theta is None else {**found, "rope_theta": theta}
    return ConfigValues(merged, f"{values.source}, rope settings")


def _original_max_len(values: ConfigValues, settings: ConfigValues, configured: int) -> int:
    name = "original_max_position_embeddings"
    # A value beside the dictionary wins over the one inside, as in transformers (Phi-3 writes it there).
    source = values if values.get(name) is not None else settings
    return source.integer(name, configured, most=MAX_POSITION)


def _linear(settings: ConfigValues, dim: int, theta: float, configured: int, original: int) -> Rope:
    return Rope(dim, theta, scaling="linear", factor=settings.positive("factor"))


def _dynamic(settings: ConfigValues, dim: int, theta: float, configured: int, original: int) -> Rope:
    factor = settings.number("factor", least=1.0)
    return Rope(dim, theta, scaling="dynamic", factor=factor, original_max_len=configured)


def _llama3(settings: ConfigValues, dim: int, theta: float, configured: int, original: int) -> Rope:
    low, high = settings.positive("low_freq_factor"), settings.positive("high_freq_factor")
    if low >= high:
        raise settings.wrong("high_freq_factor", f"greater than low_freq_factor {low}")
    factor = settings.positive("factor")
    return Rope(dim, theta, scaling="llama3", factor=factor, original_max_len=original, params=(low, high))


def _mscale(scale: float, weight: float) -> float:
    return 0.1 * weight * math.log(scale) + 1.0 if scale > 1 else 1.0


def _yarn(settings: ConfigValues, dim: int, theta: float, configured: int, original: int) -> Rope:
    """Raises: ModelFilesError where theta makes the correction range undefined."""
    factor = settings.positive("factor", configured / original)
    mscale, mscale_all_dim = settings.number("mscale", 0.0), settings.number("mscale_all_dim", 0.0)
    if settings.get("attention_factor") is not None:
        attention_factor = settings.number("attention_factor")
    elif mscale and mscale_all_dim:
        attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    else:
        attention_factor = _mscale(factor, 1.0)
    # 0 means the default, as in transformers
    beta_fast = settings.positive("beta_fast") if settings.get("beta_fast") else 32.0
    beta_slow = settings.positive("beta_slow") if settings.get("beta_slow") else 1.0
    if theta <= 1:
        raise ModelFilesError(
            f"{settings.source}: rope_theta is {theta}; yarn needs more than 1: correct the file"
        )
    return Rope(
        dim,
        theta,
        scaling="yarn",
        factor=factor,
        original_max_len=original,
        attention_factor=attention_factor,
        params=(beta_fast, beta_slow),
        truncate=settings.flag("truncate", True),
    )


def _longrope(settings: ConfigValues, dim: int, theta: float, configured: int, original: int) -> Rope:
    factor = settings.positive("factor", configured / original)
    if settings.get("attention_factor") is not None:
        attention_factor = settings.number("attention_factor")
    elif factor <= 1 or original <= 1:
        attention_factor = 1.0
    else:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    return Rope(
        dim,
        theta,
        scaling="longrope",
        factor=factor,
        original_max_len=original,
        attention_factor=attention_factor,
        short_factors=settings.numbers("short_factor", dim // 2),
        long_factors=settings.numbers("long_factor", dim // 2),
    )
