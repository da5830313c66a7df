"""Config to spec for each family: what differs from the plain case, and defaults of absent keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import transformers

from trivet.errors import ModelFilesError, UnsupportedArchitecture
from trivet.models.architectures import ARCHITECTURES
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import MLP, Layer, ModelSpec, Norm, Rope

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def spec(architecture: str, **config: Any) -> ModelSpec:
    return ARCHITECTURES[architecture]({**SMALL, **config})


def only_kind(found: ModelSpec) -> Layer:
    assert found.layers == (0,) * found.num_layers
    (kind,) = found.kinds
    return kind


@pytest.mark.parametrize(
    ("architecture", "config_class"),
    [
        ("LlamaForCausalLM", transformers.LlamaConfig),
        ("MistralForCausalLM", transformers.MistralConfig),
        ("Qwen2ForCausalLM", transformers.Qwen2Config),
        ("Qwen3ForCausalLM", transformers.Qwen3Config),
    ],
)
def test_absent_keys_have_the_defaults_of_transformers(architecture: str, config_class: Any) -> None:
    hf = config_class(**SMALL)
    assert ARCHITECTURES[architecture](SMALL) == ARCHITECTURES[architecture](hf.to_dict())


def test_plain_llama() -> None:
    found = spec("LlamaForCausalLM", rms_norm_eps=1e-5, max_position_embeddings=512)
    kind = only_kind(found)
    assert kind.mlp == MLP(80)
    assert kind.attention.rope == Rope(16)
    assert (kind.attention.num_heads, kind.attention.num_kv_heads, kind.attention.head_dim) == (4, 2, 16)
    assert kind.attention.scale == 0.25
    assert kind.attention.window is None
    assert found.norm == Norm(eps=1e-5)
    assert (found.vocab_size, found.hidden_size, found.max_position) == (96, 64, 512)
    assert not found.tie_embeddings


def test_llama_biases_follow_their_keys() -> None:
    kind = only_kind(spec("LlamaForCausalLM", attention_bias=True, mlp_bias=True))
    assert kind.attention.qkv_bias
    assert kind.attention.out_bias
    assert isinstance(kind.mlp, MLP)
    assert kind.mlp.bias


def test_explicit_head_dim_goes_before_the_quotient() -> None:
    attention = only_kind(spec("MistralForCausalLM", head_dim=32)).attention
    assert (attention.head_dim, attention.scale, attention.rope) == (32, 32**-0.5, Rope(32))


def test_absent_kv_heads_are_as_many_as_heads() -> None:
    assert only_kind(spec("LlamaForCausalLM", num_key_value_heads=None)).attention.num_kv_heads == 4


@pytest.mark.parametrize(("window", "expected"), [(None, None), (128, 128)])
def test_mistral_window_is_of_every_layer(window: int | None, expected: int | None) -> None:
    assert only_kind(spec("MistralForCausalLM", sliding_window=window)).attention.window == expected


def test_mistral_has_no_biases() -> None:
    kind = only_kind(spec("MistralForCausalLM", attention_bias=True, mlp_bias=True))
    assert kind.mlp == MLP(80, bias=False)
    assert not kind.attention.qkv_bias
    assert not kind.attention.out_bias


def test_qwen2_has_biases_on_q_k_v_only() -> None:
    attention = only_kind(spec("Qwen2ForCausalLM")).attention
    assert (attention.qkv_bias, attention.out_bias, attention.qk_norm) == (True, False, None)


def test_qwen_window_that_is_not_used_does_not_count() -> None:
    found = spec("Qwen2ForCausalLM", sliding_window=32, max_window_layers=0)
    assert only_kind(found).attention.window is None


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_window_begins_at_max_window_layers(architecture: str) -> None:
    found = spec(architecture, use_sliding_window=True, sliding_window=32, max_window_layers=3)
    assert [found.layer(i).attention.window for i in range(4)] == [None, None, None, 32]
    assert len(found.kinds) == 2


def test_qwen_layer_types_go_before_max_window_layers() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    found = spec("Qwen3ForCausalLM", use_sliding_window=True, sliding_window=8, layer_types=types)
    assert [found.layer(i).attention.window for i in range(4)] == [8, None, 8, None]


def test_qwen3_norms_q_and_k_and_has_heads_of_128() -> None:
    attention = only_kind(spec("Qwen3ForCausalLM", rms_norm_eps=1e-5)).attention
    assert (attention.head_dim, attention.qk_norm, attention.qkv_bias) == (128, Norm(eps=1e-5), False)


@pytest.mark.parametrize(
    ("name", "kind"), [("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu"), ("swish", "silu")]
)
def test_activation_is_named_in_our_words(name: str, kind: str) -> None:
    mlp = only_kind(spec("LlamaForCausalLM", hidden_act=name)).mlp
    assert isinstance(mlp, MLP)
    assert mlp.activation == kind


def test_activation_that_we_lack_is_left_to_transformers() -> None:
    with pytest.raises(UnsupportedArchitecture, match="hidden_act is 'mish'; our decoder has gelu"):
        spec("LlamaForCausalLM", hidden_act="mish")


JUNK = [
    None,
    True,
    -1,
    0,
    7,
    10**12,
    10**400,
    1.5,
    1e308,
    1e-320,
    math.nan,
    math.inf,
    "",
    "x",
    [],
    [1],
    {"a": 1},
]
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
EVERY_KEY = {
    **SMALL,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": True,
    "sliding_window": 8,
    "max_window_layers": 1,
    "layer_types": None,
    "rope_parameters": YARN,
    "rope_scaling": None,
    "original_max_position_embeddings": None,
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_junk_in_any_key_gives_finite_frequencies_or_an_error_of_ours(architecture: str) -> None:
    in_rope = ("beta_fast", "beta_slow", "mscale", "attention_factor", "truncate", "type", *YARN)
    configs = [{**EVERY_KEY, key: junk} for key in EVERY_KEY for junk in JUNK]
    configs += [{**EVERY_KEY, "rope_parameters": {**YARN, key: junk}} for key in in_rope for junk in JUNK]
    num_refused = 0
    for config in configs:
        try:
            found = ARCHITECTURES[architecture](config)
        except ModelFilesError:
            num_refused += 1
            continue
        for kind in found.kinds:
            assert kind.attention.rope is not None
            assert np.isfinite(inverse_frequencies(kind.attention.rope, found.max_position)[0]).all()
    assert 0.2 < num_refused / len(configs) < 0.8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing; it must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 66}, "num_attention_heads is 4; it must be a divisor of hidden_size 66"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads is 3; it must be a divisor of num_attention_heads 4",
        ),
        ({"head_dim": 15}, "head_dim is 15; it must be even"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; .* from 1 to 10000"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types is .* a list of 4 of"),
    ],
)
def test_damaged_config_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        spec("Qwen2ForCausalLM", **config)
