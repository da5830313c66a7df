"""Runs an architecture without a spec through transformers' own modelling code, with our paged attention.

transformers hands every attention of a model to a function of its AttentionInterface; ours writes K and V to
the paged cache and attends as the generic decoder does. The tokens of a whole batch pass as one row
[1, T], each with its own position; only attention tells the sequences apart. Whether that is true of an
architecture is checked before it serves (`check_paging`).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trivet.contract import Batch
from trivet.errors import UnsupportedArchitecture, WeightsError
from trivet.models.ops import StepAdapters
from trivet.models.spec import Attention, ModelSpec
from trivet.models.torch_attention import AttentionCache, PagedStep

# Arguments of an attention function that change its result in ways that ours does not know.
UNKNOWN_ARGUMENTS = ("s_aux", "position_bias", "head_mask", "cu_seq_lens_q", "alibi")
# Their frequencies change in transformers while sequences grow.
LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
CHECK_TOKENS = 8
# Of the hidden states' own size: a wrong position or a lost state is off by a large part of it.
CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}


class TransformersModel:
    """A model of transformers that meets what a runner asks of a decoder."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, max_model_len: int) -> None:
        self.kv: AttentionCache | None = None  # set once the cache has been allocated
        self._spec, self._dtype, self._max_model_len = spec, dtype, max_model_len
        self._model: Any = None
        self._base: Any = None
        self._tail: Any = None
        self._given = _Given()
        self._step: PagedStep | None = None
        self._layers_seen: list[int] = []

    def load(self, folder: Path) -> None:
        """Read config and safetensors of a folder, never code.

        Raises: UnsupportedArchitecture, WeightsError.
        """
        name = f"trivet_paged_{id(self):x}"  # one function a model: it finds its step through `self`
        AttentionInterface.register(name, self._attend)
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=self._dtype,
                attn_implementation=name,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UnsupportedArchitecture(
                f"{folder}: transformers cannot load {self._spec.architecture}: {error}"
            ) from error
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise WeightsError(
                f"{folder}: the weight files lack {missing[0]!r} and {len(missing) - 1} other tensors of "
                f"{self._spec.architecture}; fetch them again"
            )
        self._model = model.eval()
        name = self._inner_name(model)
        self._base = getattr(model, name)
        self._fix_rope()
        self._tail = copy.copy(model)
        self._tail._modules = {**model._modules, name: self._given}

    def _inner_name(self, model: PreTrainedModel) -> str:
        """Of the layers without the head; Llama 4's prefix is another one's.

        Raises: UnsupportedArchitecture.
        """
        for name in (model.base_model_prefix, "model"):
            if name in model._modules:
                return name
        raise self._unsupported("the layers cannot be told from the head")

    def _fix_rope(self) -> None:
        """Take rotary frequencies that follow the longest sequence of a batch once, for `max_model_len`.

        Cached keys could not follow them, and a sequence would depend on its neighbours.
        """
        for module in self._base.modules():
            kind = getattr(module, "rope_type", None)
            if kind in LENGTH_DEPENDENT_ROPES:
                module.inv_freq, module.attention_scaling = ROPE_INIT_FUNCTIONS[kind](
                    module.config, seq_len=self._max_model_len
                )
                module.rope_type = "default"

    @property
    def size_bytes(self) -> int:
        """Of parameters and buffers, shared ones once."""
        tensors = {t.data_ptr(): t.nbytes for t in (*self._model.parameters(), *self._model.buffers())}
        return sum(tensors.values())

    def forward(
        self, token_ids: Tensor, positions: Tensor, step: PagedStep, adapters: StepAdapters | None = None
    ) -> Tensor:
        """[T], [T] -> hidden states after the final norm [T, hidden_size]."""
        assert adapters is None  # a backend's `check` refuses slots for such a model
        if not len(token_ids):
            return torch.empty(0, self._spec.hidden_size, dtype=self._dtype)
        return self._hidden(token_ids, step, position_ids=positions[None])

    def _hidden(self, token_ids: Tensor, step: PagedStep, **positions: Tensor) -> Tensor:
        self._step, self._layers_seen = step, []
        output = self._base(input_ids=token_ids[None], use_cache=False, **positions)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden_size] -> [R, vocab_size]: the model's own head with its scales and caps."""
        self._given.hidden = hidden[None]
        logits: Tensor = self._tail(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False).logits[0]
        return logits

    def close(self) -> None:
        """Forget model and cache; the registered function stays in transformers' table, empty."""
        self._model = self._base = self._tail = self.kv = self._step = None
        self._given = _Given()

    # ---- attention -------------------------------------------------------------------------------

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """What transformers calls: query [1, H, T, D], key and value [1, Hkv, T, D] -> [1, T, H, D]."""
        layer = int(getattr(module, "layer_idx", -1))
        self._check_call(module, layer, key, value, attention_mask, sliding_window, others)
        assert self.kv is not None
        assert self._step is not None
        self._layers_seen.append(layer)
        spec: Attention = replace(
            self._spec.layer(layer).attention,
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            window=sliding_window,
            soft_cap=softcap,
        )
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        out = self.kv.attend(q.contiguous(), k, v, layer, spec, self._step)
        return out[None], None

    def _check_call(
        self,
        module: nn.Module,
        layer: int,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        window: int | None,
        others: dict[str, Any],
    ) -> None:
        """Raises: UnsupportedArchitecture for an attention that ours would compute wrongly."""
        if not 0 <= layer < self._spec.num_layers:
            raise self._unsupported(f"calls attention from layer {layer} of {self._spec.num_layers}")
        if mask is not None:
            raise self._unsupported("makes an attention mask of its own")
        if getattr(module, "is_causal", True) is False:
            raise self._unsupported("has attention that looks ahead")
        unknown = [name for name in UNKNOWN_ARGUMENTS if others.get(name) is not None]
        if unknown:
            raise self._unsupported(f"passes {', '.join(unknown)} to attention")
        planned = self._spec.layer(layer).attention
        wanted = (planned.num_kv_heads, planned.head_dim)
        for tensor in (key, value):
            if (tensor.shape[1], tensor.shape[3]) != wanted:
                raise self._unsupported(
                    f"has {tensor.shape[1]} KV heads of {tensor.shape[3]} in layer {layer} where its config "
                    f"lets expect {wanted[0]} of {wanted[1]}"
                )
        kinds = getattr(self._model.config, "layer_types", None)
        if kinds and (kinds[layer] == "sliding_attention") is not (window is not None):
            raise self._unsupported(f"tells attention of layer {layer} no window, but is {kinds[layer]}")

    def check_paging(self) -> None:
        """Compare a prompt in one piece with the same in two, the second beside other sequences.

        One of those is as long as a sequence may be. Positions that are given must be the model's own.

        Raises: UnsupportedArchitecture where they differ: positions are then taken from the row, follow the
            longest sequence, start elsewhere (RoBERTa's), or the model keeps state besides keys and values;
            also where it has no position for the longest.
        """
        assert self.kv is not None
        count = min(CHECK_TOKENS, self.kv.block_size)
        tokens = (np.arange(count) * 7 + 3) % self._spec.num_tokens
        whole = self._check_step([(1, tokens, 0)])[-1]
        if sorted(self._layers_seen) != list(range(self._spec.num_layers)):
            raise self._unsupported(
                f"called attention in layers {self._layers_seen} of {self._spec.num_layers}"
            )
        half = count // 2
        self._check_step([(1, tokens[:half], 0)])
        last = self._max_model_len - 1
        mates = [(0, tokens[:1], last), (0, tokens[::-1][: count - half], 0)]
        try:
            parts = self._check_step([*mates, (1, tokens[half:], half)])[-1]
        except IndexError as cause:
            raise self._unsupported(f"has no position {last}; a lower max_model_len may do") from cause
        self._check_equal(whole, parts, "gives other results for a prompt in chunks")
        own = self._check_step([(1, tokens, 0)], gives_positions=False)[-1]
        self._check_equal(whole, own, "counts positions in a way of its own")

    def _check_equal(self, one: Tensor, other: Tensor, fault: str) -> None:
        """Raises: UnsupportedArchitecture."""
        scale = one.abs().max().item() + 1e-9
        error = (one - other).abs().max().item() / scale
        if not error <= CHECK_TOLERANCE[self._dtype]:
            raise self._unsupported(f"{fault} (off by {error:.2g})")

    def _check_step(
        self, sequences: list[tuple[int, np.ndarray[Any, Any], int]], *, gives_positions: bool = True
    ) -> Tensor:
        """Hidden states of sequences given as (block, tokens, first position); all they see is that block."""
        assert self.kv is not None
        lengths = np.array([len(tokens) for _, tokens, _ in sequences], np.int32)
        starts = np.array([start for _, _, start in sequences], np.int32)
        blocks = np.array([block for block, _, _ in sequences], np.int32)
        width = -(-int((starts + lengths).max()) // self.kv.block_size)
        token_ids = np.concatenate([tokens for _, tokens, _ in sequences])
        positions = np.concatenate([np.arange(len(t)) + start for _, t, start in sequences])
        batch = Batch(
            step=0,
            slots=np.arange(len(sequences), dtype=np.int32),
            query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            seq_lens=starts + lengths,
            block_tables=(np.repeat(blocks[:, None], width, axis=1),),
            token_ids=token_ids.astype(np.int32),
            positions=positions.astype(np.int32),
            logits_rows=np.zeros(0, np.int32),
            row_seqs=np.zeros(0, np.int32),
        )
        step = PagedStep(batch, self.kv.block_size, self.kv.workspace_blocks)
        given = (
            {"position_ids": torch.from_numpy(positions.astype(np.int64))[None]} if gives_positions else {}
        )
        with torch.inference_mode():
            return self._hidden(torch.from_numpy(token_ids.astype(np.int64)), step, **given)

    def _unsupported(self, what: str) -> UnsupportedArchitecture:
        return UnsupportedArchitecture(
            f"architecture {self._spec.architecture} has no spec in Trivet and, in transformers' own code, "
            f"{what}; paged attention cannot carry that: choose another model"
        )


class _Given(nn.Module):
    """Stands for the layers of a model whose hidden states are already known."""

    hidden: Tensor | None = None

    @property
    def decoder(self) -> nn.Module:
        """Some heads (OPT's) call their model's decoder."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPast:
        return _Hidden(last_hidden_state=self.hidden)


class _Hidden(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers has no types
    """Hidden states alone; what else a head passes on (attentions, router logits) is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
