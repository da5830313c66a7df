"""What PEFT's adapter_config.json says of an adapter (LoRA): the scale of each matrix, and what is refused.

PEFT's arithmetic: W x + scale * B (A x), scale = alpha / rank, or alpha / sqrt(rank) with `use_rslora`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import regex

from trivet.errors import ModelFilesError, Unsupported, WeightsError

MAX_PATTERN = 500  # characters of a regular expression in a stranger's file
PATTERNS_S = 10.0  # for all of them; a backtracking one can take for ever, which the package re cannot end
# Values with which W x + scale * B (A x) is all there is, and what others would mean.
_PLAIN = {
    "use_dora": ((False, None), "DoRA (use_dora) scales the model's own weights"),
    "bias": (("none", None), "its biases replace the model's (bias)"),
    "lora_bias": ((False, None), "it adds biases of its own (lora_bias)"),
    "modules_to_save": (([], None), "whole modules are replaced (modules_to_save)"),
    "alora_invocation_tokens": (([], None), "it acts from certain tokens on only (aLoRA)"),
    "layer_replication": (([], None), "it copies layers (layer_replication)"),
    "trainable_token_indices": (([], {}, None), "it changes embeddings of tokens (trainable_token_indices)"),
    "target_parameters": (([], None), "it adapts parameters that are no layers (target_parameters)"),
    "use_qalora": ((False, None), "QALoRA (use_qalora) pools the input"),
    "arrow_config": ((None,), "Arrow (arrow_config) routes between adapters"),
}
# Carried out below, found in the tensors themselves, or of the training alone. Each release of PEFT has new
# keys, and what a new one does to the arithmetic is not known here.
_HARMLESS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "merge_weights",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "unsloth_fixed",
        "use_rslora",
    }
)
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")  # init_lora_weights: W stays as it was
_EMPTY: tuple[object, ...] = (None, False, "", [], {})


class PeftConfig:
    """The parsed file of one adapter. `what` names the adapter in messages."""

    def __init__(self, config: Mapping[str, Any], what: str) -> None:
        """Raises: Unsupported for what PEFT would compute and we would not; ModelFilesError."""
        self._what = what
        self._refuse_what_differs(config)
        self._patterns_s = PATTERNS_S
        self._rank = config.get("r"), self._compiled(config, "rank_pattern")
        self._alpha = config.get("lora_alpha"), self._compiled(config, "alpha_pattern")
        is_rslora = config.get("use_rslora")
        if is_rslora is not None and not isinstance(is_rslora, bool):
            raise ModelFilesError(f"{what}: use_rslora is {str(is_rslora)[:80]!r}; it must be true or false")
        self._is_rslora = bool(is_rslora)
        self.base_model = str(config.get("base_model_name_or_path") or "")

    def scale(self, module: str, rank: int) -> float:
        """Of B A of a module ("layers.0.self_attn.q_proj") whose tensors have that rank.

        Raises: ModelFilesError; Unsupported; WeightsError where the file is of another rank.
        """
        told = self._number("r", *self._rank, module)
        alpha = self._number("lora_alpha", *self._alpha, module)
        if told != rank:
            raise WeightsError(
                f"{self._what}: the tensors of {module!r} are of rank {rank} and its config says {told:g}; "
                "they are of different adapters: fetch both again"
            )
        return alpha / math.sqrt(rank) if self._is_rslora else alpha / rank

    def _refuse_what_differs(self, config: Mapping[str, Any]) -> None:
        what, kind = self._what, config.get("peft_type")
        if kind != "LORA":
            raise Unsupported(
                f"{what}: peft_type is {str(kind)[:80]!r}; adapters of the type LORA are served"
            )
        for key, (plain, reason) in _PLAIN.items():
            if config.get(key) not in plain:
                raise Unsupported(f"{what}: {reason}, which is not served: merge it into its model's weights")
        for key, value in config.items():
            if key not in _HARMLESS and key not in _PLAIN and value not in _EMPTY:
                raise Unsupported(
                    f"{what}: its config sets {key[:80]} to {str(value)[:80]}, and what that computes is not "
                    "known here: merge it into its model's weights"
                )
        init = config.get("init_lora_weights")
        if (init.lower() if isinstance(init, str) else init) not in _PLAIN_INITS:
            raise Unsupported(
                f"{what}: init_lora_weights is {str(init)[:80]!r}, which changes the model's own weights, or "
                "is not known here; save it with path_initial_model_for_weight_conversion, which makes it a "
                "plain adapter"
            )

    def _compiled(self, config: Mapping[str, Any], key: str) -> list[tuple[regex.Pattern[str], object]]:
        patterns = config.get(key) or {}
        if not isinstance(patterns, dict):
            raise ModelFilesError(f"{self._what}: {key} is {str(patterns)[:80]}; it must be an object")
        compiled = []
        for pattern, value in patterns.items():
            if len(pattern) > MAX_PATTERN or "{" in pattern:  # counted repetitions are written out in memory
                raise Unsupported(
                    f"{self._what}: {key} has a pattern of {len(pattern)} characters, {pattern[:80]!r}; at "
                    f"most {MAX_PATTERN} are read, and none with braces: write it as several"
                )
            with self._timed(pattern):
                try:
                    compiled.append((regex.compile(rf"(.*\.)?({pattern})$"), value))
                except (regex.error, OverflowError, RecursionError) as error:
                    raise ModelFilesError(
                        f"{self._what}: {key} has {pattern[:80]!r}, which is no pattern: {error}"
                    ) from None
        return compiled

    def _number(
        self, setting: str, general: object, patterns: list[tuple[regex.Pattern[str], object]], module: str
    ) -> float:
        """Of the first of PEFT's patterns that the module's name ends with, else of all."""
        value = next((own for pattern, own in patterns if self._matches(pattern, module)), general)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 31:
            raise ModelFilesError(
                f"{self._what}: {setting} is {str(value)[:80]}; it must be a number above 0 and below 2^31"
            )
        return float(value)

    def _matches(self, pattern: regex.Pattern[str], module: str) -> bool:
        with self._timed(pattern.pattern):
            return pattern.match(module, timeout=self._patterns_s) is not None

    @contextmanager
    def _timed(self, pattern: str) -> Iterator[None]:
        started_s = time.monotonic()
        try:
            if self._patterns_s <= 0:
                raise TimeoutError
            yield
        except TimeoutError:
            raise Unsupported(
                f"{self._what}: its patterns take more than {PATTERNS_S:g} s, the last is {pattern[:80]!r}; "
                "write the names of the modules instead"
            ) from None
        finally:
            self._patterns_s -= time.monotonic() - started_s
