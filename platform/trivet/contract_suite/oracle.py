"""Where the right answers come from.

A model's oracle is transformers in float32, run over whole sequences with neither cache nor pages. A
backend whose tokens come from no weights (the null backend) documents a function instead, as its method
`reference_logits(spec, token_ids) -> float32 [T, V]`, and that is its oracle; if it pools, also
`reference_hidden(spec, token_ids) -> float32 [T, hidden_size]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trivet.contract_suite.tiny_adapters import merge_adapter
from trivet.engine.agreement import Scores

if TYPE_CHECKING:
    import torch

Float32 = NDArray[np.float32]


class Oracle(Protocol):
    """Says what the next-token logits are."""

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """[T, V]: row t after the first t + 1 of the tokens."""

    def hidden(self, token_ids: Sequence[int]) -> Float32:
        """[T, hidden_size] after the final norm."""


class FunctionOracle:
    """The oracle of a backend that documents its function."""

    def __init__(
        self,
        logits: Callable[[Sequence[int]], Float32],
        hidden: Callable[[Sequence[int]], Float32],
    ) -> None:
        self._logits = logits
        self._hidden = hidden

    def logits(self, token_ids: Sequence[int]) -> Float32:
        return self._logits(token_ids)

    def hidden(self, token_ids: Sequence[int]) -> Float32:
        return self._hidden(token_ids)


class TransformersOracle:
    """transformers' own modelling code in float32."""

    def __init__(self, model: Any, max_model_len: int, num_tokens: int) -> None:
        self._model = model.eval().float()
        self._num_tokens = num_tokens
        _fix_dynamic_rope(self._model, max_model_len)
        self._remembered = lru_cache(maxsize=256)(self._compute)
        self._remembered_hidden = lru_cache(maxsize=256)(self._compute_hidden)

    @classmethod
    def from_folder(cls, folder: Path, max_model_len: int, num_tokens: int) -> TransformersOracle:
        """Of a folder in Hugging Face's layout."""
        import torch
        from transformers import AutoModelForCausalLM

        # Eager attention is the formula; SDPA may choose a kernel of its own.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        return cls(model, max_model_len, num_tokens)

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """Without the head's padding rows, which no runner samples. [T, num_tokens]"""
        return self._remembered(tuple(int(token) for token in token_ids))

    def hidden(self, token_ids: Sequence[int]) -> Float32:
        """[T, hidden_size]"""
        return self._remembered_hidden(tuple(int(token) for token in token_ids))

    def adapt(self, folder: Path) -> None:
        """From now on of the model with an adapter (PEFT's folder) merged into it."""
        merge_adapter(self._model, folder)
        self._remembered.cache_clear()
        self._remembered_hidden.cache_clear()

    def _compute_hidden(self, token_ids: tuple[int, ...]) -> Float32:
        import torch

        base = getattr(self._model, self._model.base_model_prefix)
        with torch.inference_mode():
            output = base(input_ids=torch.tensor([token_ids]), use_cache=False)
        hidden: Float32 = output.last_hidden_state[0].numpy()
        return hidden

    def _compute(self, token_ids: tuple[int, ...]) -> Float32:
        import torch

        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([token_ids]), use_cache=False)
        logits: Float32 = output.logits[0, :, : self._num_tokens].numpy()
        logits.flags.writeable = False
        return logits


def scores(oracle: Oracle, token_ids: Sequence[int]) -> Scores:
    """What the oracle says about the tokens after the first."""
    return Scores.of_logits(oracle.logits(token_ids), token_ids)


def _fix_dynamic_rope(model: Any, max_model_len: int) -> None:
    """Fix dynamic NTK's frequencies once, from max_model_len.

    transformers recomputes them as a sequence grows, which cached keys could not follow; the contract
    fixes them (CONTRACT.md, decision 12).
    """
    rotary: Any = getattr(model.get_decoder(), "rotary_emb", None)
    if rotary is None or rotary.rope_type != "dynamic":
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies: torch.Tensor
    frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, None, seq_len=max_model_len)
    rotary.inv_freq = frequencies
    rotary.rope_type = "default"
