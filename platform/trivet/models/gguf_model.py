"""A model from GGUF files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trivet.errors import ModelFilesError, UnsupportedArchitecture
from trivet.models.architectures.gguf_spec import PERMUTED, gguf_spec
from trivet.models.architectures.tensor_names import from_gguf
from trivet.models.description import ModelFiles, commonest_format, total_bytes
from trivet.models.expected_tensors import check_tensors, expected_tensors
from trivet.models.generation_defaults import check_defaults
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.reader import TensorReader
from trivet.weights.shards import read_gguf_files

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec
    from trivet.weights.raw_tensor import RawTensor

FREQUENCY_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
MAX_FREQUENCIES = 1 << 15
# What no result here depends on: rotary factors (read above) and buffers, scales of activations that are
# quantised (ours are not), a classifier's head. llama.cpp refuses any other tensor that it does not read; the
# scales beside nvfp4 matrices are such.
UNREAD = re.compile(
    r"rope_(freqs|factors_short|factors_long)\.weight|.+\.(attn_rot_embd.*|input_scale)|cls\..+"
)
END_KEYS = tuple(f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
# Files from before the key eot_token_id name the end of the text only; a chat model that closes its turns
# with one of these would never stop. llama.cpp finds them by their text, too.
END_OF_TURN = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|eom_id|>", "<end_of_turn>", "<|endofturn|>"}
)
CONTROL_TOKEN = 3
TEMPLATE_KEYS = MappingProxyType(
    {"tokenizer.chat_template": "default", "tokenizer.chat_template.tool_use": "tool_use"}
)
SAMPLING_KEYS = MappingProxyType(
    {
        "general.sampling.temp": "temperature",
        "general.sampling.top_k": "top_k",
        "general.sampling.top_p": "top_p",
        "general.sampling.min_p": "min_p",
        "general.sampling.penalty_repeat": "repetition_penalty",
    }
)


def open_gguf(path: Path) -> ModelFiles:
    """Raises: ModelFilesError, UnsupportedArchitecture, WeightsError naming file and tensor."""
    header, weight_files = read_gguf_files(path)
    metadata, first = header.metadata, weight_files.files[0]
    raw = {tensor.name: tensor for tensor in weight_files.tensors}
    spec = gguf_spec(metadata, raw, _frequency_factors(raw), str(first))
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) and tokens else None
    if num_tokens is not None:
        if (
            num_tokens > spec.vocab_size
        ):  # llama.cpp refuses any difference; rows beyond the tokens harm nobody
            raise ModelFilesError(
                f"{first}: tokenizer.ggml.tokens has {num_tokens} tokens and token_embd.weight in "
                f"{raw['token_embd.weight'].file} has {spec.vocab_size} rows: they are of different models; "
                "convert the model again"
            )
        spec = replace(spec, num_tokens=num_tokens)
    is_permuted = metadata["general.architecture"] in PERMUTED
    weights = _index(weight_files.tensors, spec, is_permuted=is_permuted)
    check_tensors(spec, weights)
    return ModelFiles(
        path=first,
        format="gguf",
        name=first.stem.removesuffix(f"-00001-of-{len(weight_files.files):05}"),
        architecture=spec.architecture,
        spec=spec,
        weights=weights,
        quantization=commonest_format(weights),
        context_length=spec.max_position,
        eos_token_ids=_end_tokens(metadata),
        bos_token_id=_token_id(metadata.get("tokenizer.ggml.bos_token_id")),
        chat_templates=_chat_templates(metadata),
        generation_defaults=_generation_defaults(metadata, first),
        files=weight_files.files,
        size_bytes=total_bytes(weight_files.files),
        licence=_text(metadata.get("general.license")),
        config=MappingProxyType({key: v for key, v in metadata.items() if not _is_vocabulary(key, v)}),
        num_tokens=num_tokens,
    )


def _frequency_factors(raw: Mapping[str, RawTensor]) -> dict[str, tuple[float, ...]]:
    """The rotary factors of Llama 3.1 and longrope, which GGUF keeps as tensors of a few bytes."""
    found = [_info(raw[name], name) for name in FREQUENCY_TENSORS if name in raw]
    for tensor in found:
        if len(tensor.shape) != 1 or tensor.shape[0] > MAX_FREQUENCIES or tensor.format != "f32":
            raise ModelFilesError(
                f"{tensor.file}: tensor {tensor.name!r} is {tensor.format} of shape {list(tensor.shape)}; "
                "it must be a row of f32 factors: convert the model again"
            )
    with TensorReader(WeightIndex(tuple(found))) as reader:
        factors = {tensor.name: tuple(reader.float32(tensor.name).tolist()) for tensor in found}
    for tensor in found:
        if not all(0 < factor < float("inf") for factor in factors[tensor.name]):
            raise ModelFilesError(
                f"{tensor.file}: tensor {tensor.name!r} holds factors that are not positive numbers: "
                "convert the model again"
            )
    return factors


def _info(tensor: RawTensor, name: str, unpermute_heads: int = 0) -> TensorInfo:
    return TensorInfo(
        name, tensor.shape, tensor.format, tensor.file, tensor.offset, tensor.size_bytes, unpermute_heads
    )


def _index(tensors: Iterable[RawTensor], spec: ModelSpec, *, is_permuted: bool) -> WeightIndex:
    """The tensors that the spec reads.

    Raises: UnsupportedArchitecture for one that it does not read and that a result may depend on.
    """
    wanted = {name for name, _ in expected_tensors(spec)}
    attention = spec.kinds[0].attention
    heads = {"q": attention.num_heads, "k": attention.num_kv_heads} if is_permuted else {}
    infos = []
    for tensor in tensors:
        name = from_gguf(tensor.name)
        if name in wanted:
            infos.append(_info(tensor, name, heads.get(name.split(".")[-2], 0)))
        elif not UNREAD.fullmatch(tensor.name):
            raise UnsupportedArchitecture(
                f"{tensor.file}: {spec.architecture} does not read tensor {tensor.name!r} ({tensor.format} "
                f"of shape {list(tensor.shape)}), without which its results would be wrong: use the model's "
                "safetensors, or a GGUF of another type"
            )
    return WeightIndex(tuple(infos))


def _end_tokens(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    ids = {_token_id(metadata.get(key)) for key in END_KEYS}
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        pairs = enumerate(zip(tokens, types, strict=False))
        ids |= {i for i, (token, kind) in pairs if kind == CONTROL_TOKEN and token in END_OF_TURN}
    return tuple(sorted(token_id for token_id in ids if token_id is not None))


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _text(metadata.get(key)) for key, name in TEMPLATE_KEYS.items()}
    return {name: text for name, text in found.items() if text is not None}


def _token_id(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _generation_defaults(metadata: Mapping[str, Any], source: object) -> dict[str, float]:
    found = {name: metadata.get(key) for key, name in SAMPLING_KEYS.items()}
    defaults = {name: value for name, value in found.items() if isinstance(value, int | float)}
    check_defaults(defaults, source)
    return defaults


def _is_vocabulary(key: str, value: Any) -> bool:
    return key.startswith("tokenizer.") and isinstance(value, list)
