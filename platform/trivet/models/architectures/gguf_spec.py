"""GGUF metadata to a ModelSpec, for the architectures llama (Mistral too), qwen2 and qwen3.

Keys carry the architecture's name in front ("llama.block_count"). What metadata does not state is read off
the tensors: size of the vocabulary, biases, tied embeddings. Key names and defaults: llama.cpp's
gguf-py/gguf/constants.py and llama-model.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from trivet.adapters import NO_MODEL
from trivet.errors import ModelFilesError, UnsupportedArchitecture
from trivet.models.architectures.config_values import ConfigValues
from trivet.models.architectures.dense import MAX_HEADS, Dense, Heads, read_num_layers, read_width
from trivet.models.architectures.rope_config import DEFAULT_THETA, MAX_POSITION, max_position
from trivet.models.spec import MLP, ModelSpec, Norm, Rope

if TYPE_CHECKING:
    from trivet.weights.raw_tensor import RawTensor

# general.architecture to the name that transformers has for it
ARCHITECTURES = MappingProxyType(
    {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
)
# Their converters interleave the halves of each head of q and k.
PERMUTED = frozenset({"llama"})

Factors: TypeAlias = Mapping[str, tuple[float, ...]]


def gguf_architecture(metadata: Mapping[str, Any], source: str) -> str:
    """general.architecture. Raises: ModelFilesError, UnsupportedArchitecture naming what is supported."""
    if metadata.get("general.type") == "adapter":
        raise UnsupportedArchitecture(f"{source} {NO_MODEL}{source}")
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelFilesError(
            f"{source}: general.architecture is {str(name)[:80]}; it must be a text: convert the model again"
        )
    if name not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"{source}: GGUF architecture {name[:80]!r} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}: use the model's safetensors, which transformers may know"
        )
    return name


def gguf_spec(
    metadata: Mapping[str, Any], tensors: Mapping[str, RawTensor], factors: Factors, source: str
) -> ModelSpec:
    """Build the spec; `factors` are the values of the frequency tensors (rope_freqs and the like) by name.

    Raises: ModelFilesError, UnsupportedArchitecture.
    """
    architecture = gguf_architecture(metadata, source)
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    values = ConfigValues(own, f"{source}, metadata of {architecture}")
    if values.integer("expert_count", 0, least=0):
        raise UnsupportedArchitecture(
            f"{source}: {architecture} with {values.get('expert_count')} experts is not supported; "
            "use the model's safetensors, which transformers may know"
        )
    if not values.flag("attention.causal", True):
        raise UnsupportedArchitecture(
            f"{source}: attention.causal is false, so every token would see those behind it; models that "
            "generate are supported: choose another one"
        )
    hidden_size = read_width(values, "embedding_length")
    heads = _heads(values, hidden_size)
    rope = _rope(values, heads, factors, is_permuted=architecture in PERMUTED)
    embed = tensors.get("token_embd.weight")
    window = values.integer("attention.sliding_window", 0, least=0) if architecture == "llama" else 0
    return Dense(
        architecture=ARCHITECTURES[architecture],
        vocab_size=embed.shape[0] if embed and embed.shape else read_width(values, "vocab_size"),
        hidden_size=hidden_size,
        max_position=max_position(rope, values.integer("context_length", most=MAX_POSITION)),
        heads=heads,
        rope=rope,
        norm=Norm(eps=values.number("attention.layer_norm_rms_epsilon")),
        mlp=MLP(_same_everywhere(values, "feed_forward_length"), bias="blk.0.ffn_down.bias" in tensors),
        windows=[window or None] * read_num_layers(values, "block_count"),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        qk_norm=architecture == "qwen3",
        scale=values.number("attention.scale", 0.0) or None,
    ).build()


def _same_everywhere(values: ConfigValues, name: str, default: int | None = None) -> int:
    """A number, or a list of one number for every layer if all are equal."""
    found = values.get(name)
    if isinstance(found, list) and found:
        if any(item != found[0] for item in found):
            raise UnsupportedArchitecture(
                f"{values.source}: {name} differs between layers, which is not supported: "
                "use the model's safetensors, which transformers may know"
            )
        values = ConfigValues({**values.values, name: found[0]}, values.source)
    return values.integer(name, default, most=1 << 24)


def _heads(values: ConfigValues, hidden_size: int) -> Heads:
    num_heads = _same_everywhere(values, "attention.head_count")
    num_kv_heads = _same_everywhere(values, "attention.head_count_kv", num_heads)
    if num_heads > MAX_HEADS or num_heads % num_kv_heads:
        raise values.wrong(
            "attention.head_count_kv", f"a divisor of the {num_heads} heads, at most {MAX_HEADS}"
        )
    head_dim = values.integer("attention.key_length", hidden_size // num_heads, most=1 << 16)
    if values.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedArchitecture(
            f"{values.source}: attention.key_length {head_dim} with attention.value_length "
            f"{values.get('attention.value_length')} is not supported: use the model's safetensors, which "
            "transformers may know"
        )
    if head_dim % 2:
        raise values.wrong("attention.key_length", "even, for rotary positions")
    return Heads(num_heads, num_kv_heads, head_dim)


def _rope(values: ConfigValues, heads: Heads, factors: Factors, *, is_permuted: bool) -> Rope:
    dim = values.integer("rope.dimension_count", heads.head_dim, most=heads.head_dim)
    if dim % 2 or (is_permuted and dim != heads.head_dim):
        raise UnsupportedArchitecture(
            f"{values.source}: rope.dimension_count {dim} with heads of {heads.head_dim} is not supported"
        )
    theta = values.positive("rope.freq_base", DEFAULT_THETA)
    # As llama.cpp reads them: a factor of 0 stands for none, files from before rope.scaling.* state it under
    # another name, a factor without a type is linear, and the type "none" means none whatever the factor.
    key = "rope.scaling.factor" if values.get("rope.scaling.factor") else "rope.scale_linear"
    factor = values.positive(key) if values.get(key) else 1.0
    scaling = values.text("rope.scaling.type", "linear")
    if scaling == "none" or (factor == 1.0 and scaling in ("linear", "yarn")):
        return _factored(values, dim, theta, factors) if factors else Rope(dim, theta)
    if scaling == "longrope" and factors:
        return _factored(values, dim, theta, factors)
    if scaling == "yarn" and not factors:
        return _yarn(values, dim, theta, factor)
    if scaling == "linear" and not factors:
        return Rope(dim, theta, scaling="linear", factor=factor)
    raise UnsupportedArchitecture(
        f"{values.source}: rope.scaling.type {scaling[:40]!r} with{'' if factors else 'out'} frequency "
        "factors is not supported; none and longrope are with them, none, linear and yarn without: "
        "convert the model again"
    )


def _yarn(values: ConfigValues, dim: int, theta: float, factor: float) -> Rope:
    context = values.integer("context_length", most=MAX_POSITION)
    if theta <= 1:
        raise values.wrong("rope.freq_base", "greater than 1 for yarn")
    scale = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
    return Rope(
        dim,
        theta,
        scaling="yarn",
        factor=factor,
        original_max_len=values.integer("rope.scaling.original_context_length", context, most=MAX_POSITION),
        attention_factor=scale * (values.number("rope.scaling.attn_factor", 0.0) or 1.0),
        params=(
            values.positive("rope.scaling.yarn_beta_fast", 32.0),
            values.positive("rope.scaling.yarn_beta_slow", 1.0),
        ),
    )


def _factored(values: ConfigValues, dim: int, theta: float, factors: Factors) -> Rope:
    """Each frequency is divided by its own factor: Llama 3.1's scaling as GGUF has it, and longrope."""
    one = factors.get("rope_freqs.weight")
    short, long = (one, one) if one else (factors.get(f"rope_factors_{k}.weight") for k in ("short", "long"))
    if short is None or long is None or not len(short) == len(long) == dim // 2:
        raise ModelFilesError(
            f"{values.source}: {', '.join(factors)} must hold {dim // 2} factors each, short and long ones "
            "together: convert the model again"
        )
    context = values.integer("context_length", most=MAX_POSITION)
    original = values.integer("rope.scaling.original_context_length", context, most=MAX_POSITION)
    return Rope(
        dim,
        theta,
        scaling="longrope",
        original_max_len=original,
        attention_factor=values.number("rope.scaling.attn_factor", 0.0) or 1.0,
        short_factors=short,
        long_factors=long,
    )
