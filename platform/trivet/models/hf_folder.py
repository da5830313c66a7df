"""A model from a folder in Hugging Face's layout: config.json, safetensors, and small files beside them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trivet.adapters import NO_MODEL
from trivet.errors import ModelFilesError, UnsupportedArchitecture, WeightsError
from trivet.models.architectures import ARCHITECTURES
from trivet.models.architectures.tensor_names import from_hf
from trivet.models.companions import TOKENIZER, Companions, read_companions
from trivet.models.description import ModelFiles, commonest_format, total_bytes
from trivet.models.expected_tensors import check_tensors, expected_tensors
from trivet.models.transformers_outline import context_length
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.json_file import read_json
from trivet.weights.shards import read_safetensors_folder

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec
    from trivet.weights.raw_tensor import RawTensor

    SpecBuilder = Callable[[Mapping[str, Any]], ModelSpec]

logger = logging.getLogger(__name__)

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # of PEFT
# Buffers that old files carry; they follow from the config.
_IGNORED = re.compile(r".*rotary_emb\.inv_freq|.*\.attn\.(masked_)?bias")


def open_folder(folder: Path, extra_architectures: Mapping[str, SpecBuilder]) -> ModelFiles:
    """Raises: ModelFilesError, WeightsError naming file and tensor."""
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file():
        raise ModelFilesError(f"{folder} {NO_MODEL}{folder}")
    if not (folder / CONFIG).is_file():
        raise ModelFilesError(f"{folder} has no {CONFIG} and no GGUF file; give the folder of a model")
    config = read_json(folder / CONFIG)
    architecture = _architecture(config, folder)
    _refuse_quantization(config, folder)
    _refuse_bidirectional(config, folder)
    weight_files = read_safetensors_folder(folder)
    companions = read_companions(folder, config)
    spec, reason = _spec(architecture, {**ARCHITECTURES, **extra_architectures}, config, folder)
    if spec is None:
        _check_vocabulary(config.get("vocab_size"), companions, folder)
        weights = WeightIndex(tuple(_info(tensor, tensor.name) for tensor in weight_files.tensors))
    else:
        spec, weights = _checked(spec, weight_files.tensors, companions, folder)
    files = (folder / CONFIG, *weight_files.files, *companions.files)
    return ModelFiles(
        path=folder,
        format="safetensors",
        name=_name(folder),
        architecture=architecture,
        spec=spec,
        weights=weights,
        quantization=commonest_format(weights),
        context_length=spec.max_position if spec else context_length(config),
        eos_token_ids=companions.eos_token_ids,
        bos_token_id=companions.bos_token_id,
        chat_templates=companions.chat_templates,
        generation_defaults=companions.generation_defaults,
        files=files,
        size_bytes=total_bytes(files),
        licence=companions.licence,
        config=MappingProxyType(config),
        num_tokens=companions.num_tokens,
        spec_missing_because=reason,
    )


def _architecture(config: Mapping[str, Any], folder: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelFilesError(
            f"{folder / CONFIG}: architectures is {str(names)[:80]}; it must name the model's class, as "
            '["LlamaForCausalLM"]: take the config.json that belongs to the weights'
        )
    return names[0]


def _refuse_quantization(config: Mapping[str, Any], folder: Path) -> None:
    quantization = config.get("quantization_config") or config.get("compression_config")
    if isinstance(quantization, dict):
        method = str(quantization.get("quant_method", "unknown"))[:40]
        raise WeightsError(
            f"{folder / CONFIG}: weights quantised by {method!r} are not read; use the model's unquantised "
            "safetensors, or a GGUF of it"
        )


def _refuse_bidirectional(config: Mapping[str, Any], folder: Path) -> None:
    """Of models that embed; transformers and vLLM honour both keys."""
    for key, is_wanted in (("is_causal", True), ("use_bidirectional_attention", False)):
        if config.get(key) is (not is_wanted):
            raise UnsupportedArchitecture(
                f"{folder / CONFIG}: {key} is {str(not is_wanted).lower()}, so every token would see those "
                "behind it; models that generate are supported: choose another one"
            )


def _spec(
    architecture: str, builders: Mapping[str, SpecBuilder], config: Mapping[str, Any], folder: Path
) -> tuple[ModelSpec | None, str | None]:
    """The spec, or None and the reason."""
    if architecture not in builders:
        return None, f"architecture {architecture!r} has no spec; there are {', '.join(sorted(builders))}"
    try:
        return builders[architecture](config), None
    except UnsupportedArchitecture as error:
        return None, f"{folder}: {error}"
    except ModelFilesError as error:
        raise ModelFilesError(f"{folder}: {error}") from error


def _checked(
    spec: ModelSpec, tensors: Iterable[RawTensor], companions: Companions, folder: Path
) -> tuple[ModelSpec, WeightIndex]:
    """The spec completed by what the files hold, and the index of the tensors that it reads."""
    named = _by_canonical_name(tensors)
    if spec.tie_embeddings and "head.weight" in named:
        # As transformers 5 does: a head of its own in the file is used, whatever the config says.
        spec = replace(spec, tie_embeddings=False)
    if companions.num_tokens is not None:
        _check_vocabulary(spec.vocab_size, companions, folder)
        spec = replace(spec, num_tokens=min(spec.vocab_size, companions.num_tokens))
    wanted = [name for name, _ in expected_tensors(spec)]
    weights = WeightIndex(tuple(_info(named[name], name) for name in wanted if name in named))
    _report_unread(tensors, weights)
    check_tensors(spec, weights)
    return spec, weights


def _check_vocabulary(num_rows: object, companions: Companions, folder: Path) -> None:
    """Added tokens may lie beyond the rows, as Gemma 3's for images (id 262144, 262144 rows).

    Args: num_rows: as the config has it; what is no number is told where the spec is made of it.

    Raises: ModelFilesError where a token of any text would have no row.
    """
    size = companions.vocabulary_size or 0
    if type(num_rows) is int and size > num_rows:
        raise ModelFilesError(
            f"{folder / TOKENIZER} has ids for {size} tokens, the added ones not counted, and "
            f"{folder / CONFIG} gives the model {num_rows} (vocab_size): they are of "
            "different models; take the tokenizer that belongs to the weights"
        )


def _by_canonical_name(tensors: Iterable[RawTensor]) -> dict[str, RawTensor]:
    """Raises: WeightsError where two tensors are one and the same to the model."""
    named: dict[str, RawTensor] = {}
    for tensor in tensors:
        name = from_hf(tensor.name)
        if name is None:
            continue
        if name in named:
            raise WeightsError(
                f"{tensor.file}: tensors {named[name].name!r} and {tensor.name!r} both are the model's "
                f"{name!r}; remove one of them, or fetch the weights again"
            )
        named[name] = tensor
    return named


def _report_unread(tensors: Iterable[RawTensor], weights: WeightIndex) -> None:
    unread = [t.name for t in tensors if from_hf(t.name) not in weights and not _IGNORED.fullmatch(t.name)]
    if unread:
        logger.warning("unread_tensors=%d first=%s", len(unread), unread[0])


def _info(tensor: RawTensor, name: str) -> TensorInfo:
    return TensorInfo(name, tensor.shape, tensor.format, tensor.file, tensor.offset, tensor.size_bytes)


def _name(folder: Path) -> str:
    """The folder's name; in a Hugging Face cache the repository's, for there it is a commit's hash."""
    full = folder.resolve()
    repository = full.parent.parent.name
    if full.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.split("--")[-1]
    return full.name
