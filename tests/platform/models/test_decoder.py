"""The generic decoder over torch's operations, against transformers in float32, for unlike architectures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from trivet.contract import Batch
from trivet.errors import Unsupported
from trivet.models.decoder import Decoder, check_dense
from trivet.models.spec import MLP, Attention, Latent, Layer, ModelSpec, MoE, Norm, Rope
from trivet.models.torch_attention import PagedKV, PagedStep
from trivet.models.torch_ops import TorchOps

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 48, 80, 2, 6, 2, 8, 61
BLOCK_SIZE = 4
LENGTH = 37


def _attention(rope: Rope | None = Rope(dim=HEAD_DIM), kv_heads: int = KV_HEADS, **more: object) -> Attention:  # noqa: B008
    shape = {"num_heads": HEADS, "num_kv_heads": kv_heads, "head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5}
    return Attention(rope=rope, **{**shape, **more})  # type: ignore[arg-type]


def _spec(layers: tuple[Layer, ...], norm: Norm = Norm(), **more: object) -> ModelSpec:  # noqa: B008
    kinds = tuple(dict.fromkeys(layers))
    return ModelSpec(
        architecture="test",
        vocab_size=VOCAB,
        num_tokens=VOCAB,
        hidden_size=HIDDEN,
        max_position=256,
        kinds=kinds,
        layers=tuple(kinds.index(layer) for layer in layers),
        norm=norm,
        **more,  # type: ignore[arg-type]
    )


# Canonical stem of a layer's tensor -> its name in transformers' Llama family.
LLAMA = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
GEMMA2 = LLAMA | {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
PHI = LLAMA | {"o": "self_attn.dense", "up": "mlp.fc1", "down": "mlp.fc2"}
LAYER_NORM = Norm("layer", 1e-5)
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
HALF_ROPE = ROPE | {"partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Family:
    """A transformers config and the spec that has to compute the same."""

    model_type: str
    config: Mapping[str, object]
    spec: ModelSpec
    names: Mapping[str, str]
    final_norm: str = "norm"


def _pair(attention: Attention, mlp: MLP = MLP(INNER), order: str = "pre") -> tuple[Layer, ...]:  # noqa: B008
    return (Layer(attention, mlp, order),) * LAYERS


FAMILIES = {
    "llama": Family("llama", {}, _spec(_pair(_attention())), LLAMA),
    "qwen2-bias": Family("qwen2", {}, _spec(_pair(_attention(qkv_bias=True))), LLAMA),
    "qwen3-qk-norm": Family(
        "qwen3", {"head_dim": HEAD_DIM}, _spec(_pair(_attention(qk_norm=Norm(eps=1e-6)))), LLAMA
    ),
    "mistral-window": Family(
        "mistral", {"sliding_window": 9, "head_dim": HEAD_DIM}, _spec(_pair(_attention(window=9))), LLAMA
    ),
    "gemma-add-one": Family(
        "gemma",
        {"head_dim": HEAD_DIM, "hidden_activation": "gelu_pytorch_tanh"},
        _spec(
            _pair(_attention(), MLP(INNER, "gelu_tanh")),
            Norm(eps=1e-6, add_one=True),
            tie_embeddings=True,
            embed_scale=HIDDEN**0.5,
        ),
        LLAMA,
    ),
    "gemma2-sandwich-caps": Family(
        "gemma2",
        {
            "head_dim": HEAD_DIM,
            "sliding_window": 9,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention", "full_attention"],
        },
        _spec(
            tuple(
                Layer(
                    _attention(scale=0.25, soft_cap=2.0, window=window), MLP(INNER, "gelu_tanh"), "sandwich"
                )
                for window in (9, None)
            ),
            Norm(eps=1e-6, add_one=True),
            tie_embeddings=True,
            embed_scale=HIDDEN**0.5,
            logits_soft_cap=3.0,
        ),
        GEMMA2,
    ),
    "phi-parallel-partial-rope": Family(
        "phi",
        {"rope_parameters": HALF_ROPE, "partial_rotary_factor": 0.5},
        _spec(
            _pair(
                _attention(Rope(dim=HEAD_DIM // 2), qkv_bias=True, out_bias=True),
                MLP(INNER, "gelu_tanh", gated=False, bias=True),
                "parallel",
            ),
            Norm("layer", 1e-5, bias=True),
            head_bias=True,
        ),
        PHI,
        final_norm="final_layernorm",
    ),
    "stablelm-layer-norm": Family(
        "stablelm",
        {"rope_parameters": HALF_ROPE, "partial_rotary_factor": 0.5, "use_qkv_bias": True},
        _spec(
            _pair(_attention(Rope(dim=HEAD_DIM // 2), qkv_bias=True)),
            Norm("layer", 1e-5, bias=True),
        ),
        LLAMA,
    ),
    "cohere-interleaved-rope": Family(
        "cohere",
        {"logit_scale": 0.25},
        _spec(
            _pair(_attention(Rope(dim=HEAD_DIM, interleaved=True)), order="parallel"),
            LAYER_NORM,
            tie_embeddings=True,
            logits_scale=0.25,
        ),
        LLAMA,
    ),
    "granite-scales": Family(
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
        _spec(_pair(_attention(scale=0.2)), embed_scale=3.0, residual_scale=0.5, logits_scale=0.25),
        LLAMA,
    ),
    "mpt-alibi": Family(
        "mpt",
        {
            "d_model": HIDDEN,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "expansion_ratio": 2,
            "max_seq_len": 256,
        },
        _spec(
            _pair(
                _attention(None, kv_heads=HEADS, alibi=True),
                MLP(2 * HIDDEN, "gelu", gated=False),
                order="pre",
            ),
            LAYER_NORM,
            tie_embeddings=True,
        ),
        {},
    ),
}


def _reference(family: Family) -> transformers.PreTrainedModel:
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 256,
        "rope_parameters": ROPE,
        "rms_norm_eps": 1e-6,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(family.model_type, **{**shape, **family.config})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():  # wide: sharp attention, so that a misplaced key shows
        spread = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.3 * spread + (parameter.dim() == 1) * (family.spec.norm.add_one is False)
    return model


class _Weights:
    """A transformers model's tensors under canonical names."""

    def __init__(self, model: transformers.PreTrainedModel, family: Family) -> None:
        self._tensors = model.state_dict()
        self._family = family

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._theirs(name) in self._tensors

    def tensor(self, name: str) -> Tensor:
        if self._family.model_type == "mpt":
            return self._mpt(name)
        return self._tensors[self._theirs(name)].clone()

    def _theirs(self, name: str) -> str:
        if name.startswith("layers."):
            _, index, stem, kind = name.split(".")
            return f"model.layers.{index}.{self._family.names[stem]}.{kind}"
        stem, _, kind = name.partition(".")
        top = {"embed": "model.embed_tokens", "norm": f"model.{self._family.final_norm}", "head": "lm_head"}
        return f"{top[stem]}.{kind}"

    def _mpt(self, name: str) -> Tensor:
        if not name.startswith("layers."):
            top = {"embed.weight": "transformer.wte.weight", "norm.weight": "transformer.norm_f.weight"}
            return self._tensors[top[name]].clone()
        _, index, stem, _ = name.split(".")
        block = f"transformer.blocks.{index}"
        if stem in "qkv":
            return self._tensors[f"{block}.attn.Wqkv.weight"].chunk(3)["qkv".index(stem)].clone()
        theirs = {
            "attention_norm": "norm_1",
            "o": "attn.out_proj",
            "mlp_norm": "norm_2",
            "up": "ffn.up_proj",
            "down": "ffn.down_proj",
        }
        return self._tensors[f"{block}.{theirs[stem]}.weight"].clone()


class Paged:
    """The decoder with one sequence in scattered blocks."""

    def __init__(self, spec: ModelSpec, weights: _Weights) -> None:
        self._ops = TorchOps("f32", 256)
        self._ops.kv = PagedKV(spec, 16, BLOCK_SIZE, torch.float32, 16)
        for layer in range(spec.num_layers):  # whatever was there before must not matter
            heads = spec.layer(layer).attention.num_kv_heads
            stale = torch.full((64, heads, HEAD_DIM), math.nan)
            self._ops.kv.write(layer, torch.arange(64), stale, stale)
        self._decoder = Decoder(spec, self._ops)
        self._decoder.load(weights)
        self._blocks = np.random.default_rng(0).permutation(np.arange(1, 16))[None].astype(np.int32)

    def logits(self, token_ids: Tensor, start: int, end: int) -> Tensor:
        """Run tokens start to end, whose predecessors have been run."""
        positions = np.arange(start, end, dtype=np.int32)
        batch = Batch(
            step=1,
            slots=np.zeros(1, np.int32),
            query_start_loc=np.array([0, end - start], np.int32),
            seq_lens=np.array([end], np.int32),
            block_tables=(self._blocks,),
            token_ids=token_ids[start:end].numpy().astype(np.int32),
            positions=positions,
            logits_rows=np.zeros(0, np.int32),
            row_seqs=np.zeros(0, np.int32),
        )
        step = PagedStep(batch, BLOCK_SIZE, 16)
        with torch.inference_mode():
            hidden = self._decoder.forward(token_ids[start:end], torch.from_numpy(positions).long(), step)
            return self._decoder.logits(hidden)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


CHUNKINGS: Mapping[str, Callable[[], list[int]]] = {
    "whole": lambda: [0, LENGTH],
    "chunks": lambda: [0, 5, 6, 7, 23, LENGTH],
    "token by token": lambda: list(range(LENGTH + 1)),
}


@pytest.mark.parametrize("chunking", CHUNKINGS)
def test_logits_equal_those_of_transformers_whatever_the_chunks(family: Family, chunking: str) -> None:
    model = _reference(family)
    token_ids = torch.randint(3, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(input_ids=token_ids[None]).logits[0]
    ours = Paged(family.spec, _Weights(model, family))
    bounds = CHUNKINGS[chunking]()
    actual = torch.cat([ours.logits(token_ids, a, b) for a, b in itertools.pairwise(bounds)])
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


def test_experts_are_refused_by_name() -> None:
    layer = Layer(_attention(), MoE(num_experts=8, top_k=2, intermediate_size=INNER))
    with pytest.raises(Unsupported, match="8 experts"):
        check_dense(_spec((layer,)))


def test_latent_attention_is_refused_by_name() -> None:
    latent = Latent(q_rank=None, kv_rank=16, qk_nope_dim=8, v_dim=8)
    with pytest.raises(Unsupported, match="latent attention"):
        check_dense(_spec((Layer(_attention(latent=latent), MLP(INNER)),)))
