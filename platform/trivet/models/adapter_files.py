"""An adapter (LoRA) from its files: PEFT's folder, or a GGUF file as llama.cpp converts one.

Headers alone are read, as for a model. What PEFT would compute and we would not is refused with the reason.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.errors import ModelFilesError, Unsupported, WeightsError
from trivet.models.architectures.gguf_spec import PERMUTED
from trivet.models.architectures.tensor_names import GGUF_LAYER, HF_LAYER
from trivet.models.expected_tensors import expected_tensors
from trivet.models.peft_config import PeftConfig
from trivet.weights import gguf, safetensors
from trivet.weights.dequantize import UNPACKERS
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.json_file import read_json

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec
    from trivet.weights.raw_tensor import RawTensor

logger = logging.getLogger(__name__)

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PARTS = ("q", "k", "v", "o", "gate", "up", "down")  # of a layer, which an adapter may adapt
_NAME = re.compile(
    r"(?:base_model\.model\.)?((?:model\.)?layers\.(\d{1,6})\.(.+))\.lora_([AB])(?:\.default)?\.weight"
)
_GGUF_NAME = re.compile(r"blk\.(\d{1,6})\.(.+)\.weight\.lora_([ab])")
_PART_OF = {name: part for name, part in HF_LAYER.items() if part in PARTS}
_GGUF_PART_OF = {name: part for name, part in GGUF_LAYER.items() if part in PARTS}


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """One adapter, for the model whose spec it was read with."""

    path: Path
    weights: WeightIndex  # by the names of `weights/index.py`
    rank: int  # the largest of its matrices
    parts: tuple[str, ...]  # in the order of PARTS
    base_model: str  # as it names it; may be empty

    @property
    def size_bytes(self) -> int:
        return self.weights.size_bytes


def read_adapter(path: str | Path, spec: ModelSpec, name: str) -> AdapterFiles:
    """Of a model with `spec`. `name` is the adapter's, for messages.

    Raises: ModelFilesError, WeightsError naming file and tensor; Unsupported with the reason.
    """
    what = f"adapter {name!r} ({path})"
    try:
        path = Path(path).expanduser()
    except RuntimeError as error:  # "~nobody"
        raise ModelFilesError(f"{what}: {error}; write the whole path") from None
    what = f"adapter {name!r} ({path})"
    if spec.shapes_only:
        raise Unsupported(
            f"{what}: {spec.architecture} runs through transformers' own code, which takes no adapters here; "
            "merge the adapter into its weights"
        )
    if path.suffix == ".gguf":
        tensors, base = _of_gguf(path, spec, what)
    else:
        tensors, base = _of_peft(path, what)
    return _checked(path, tensors, base, spec, what)


# ---- PEFT ----------------------------------------------------------------------------------------


def _of_peft(folder: Path, what: str) -> tuple[list[TensorInfo], str]:
    if not _is_file(folder / CONFIG, what):
        raise ModelFilesError(f"{what}: there is no {CONFIG}; give a folder that PEFT has saved")
    if not _is_file(folder / WEIGHTS, what):
        is_pickle = _is_file(folder / "adapter_model.bin", what)
        raise ModelFilesError(
            f"{what}: there is no {WEIGHTS}"
            + (" but adapter_model.bin, a pickle, which could run a stranger's code" if is_pickle else "")
            + "; save the adapter as safetensors"
        )
    config = PeftConfig(read_json(folder / CONFIG), what)
    tensors = [_peft_info(tensor, config, what) for tensor in safetensors.read_header(folder / WEIGHTS)]
    return tensors, config.base_model


def _peft_info(tensor: RawTensor, config: PeftConfig, what: str) -> TensorInfo:
    found = _NAME.fullmatch(tensor.name)
    if found is None or found[3] not in _PART_OF:
        adapted = ", ".join(name.rpartition(".")[2] for name in _PART_OF)
        raise Unsupported(
            f"{what}: tensor {tensor.name[:200]!r} belongs to no matrix that is adapted here, which are "
            f"{adapted}: train it with these as target_modules, or merge it into its model's weights"
        )
    _check_two_axes(tensor, what)
    stem = f"layers.{int(found[2])}.{_PART_OF[found[3]]}"
    if found[4] == "A":
        return _info(tensor, f"{stem}.lora_a")
    return _info(tensor, f"{stem}.lora_b", scale=config.scale(found[1], tensor.shape[1]))


# ---- GGUF ----------------------------------------------------------------------------------------


def _of_gguf(path: Path, spec: ModelSpec, what: str) -> tuple[list[TensorInfo], str]:
    """As llama.cpp's convert_lora_to_gguf writes it: the scale is `adapter.lora.alpha` / rank."""
    if not _is_file(path, what):
        raise ModelFilesError(f"{what}: there is no such file")
    header = gguf.read_header(path)
    kind, alpha = header.metadata.get("adapter.type"), header.metadata.get("adapter.lora.alpha")
    if header.metadata.get("general.type") != "adapter" or kind != "lora":
        raise Unsupported(f"{what}: it is no adapter of the type lora; convert one with llama.cpp")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise Unsupported(f"{what}: it acts from certain tokens on only (aLoRA), which is not served")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise ModelFilesError(f"{what}: adapter.lora.alpha is {str(alpha)[:80]}; convert the adapter again")
    attention = spec.kinds[0].attention
    is_permuted = header.metadata.get("general.architecture") in PERMUTED
    heads = {"q": attention.num_heads, "k": attention.num_kv_heads} if is_permuted else {}
    tensors = []
    for tensor in header.tensors:
        found = _GGUF_NAME.fullmatch(tensor.name)
        if found is None or found[2] not in _GGUF_PART_OF:
            raise Unsupported(
                f"{what}: tensor {tensor.name[:200]!r} belongs to no matrix that is adapted here, which are "
                f"{', '.join(_GGUF_PART_OF)}: merge it into its model's weights"
            )
        _check_two_axes(tensor, what)
        part = _GGUF_PART_OF[found[2]]
        stem = f"layers.{int(found[1])}.{part}"
        if found[3] == "a":
            tensors.append(_info(tensor, f"{stem}.lora_a"))
        else:
            scale = alpha / tensor.shape[1]
            tensors.append(_info(tensor, f"{stem}.lora_b", heads.get(part, 0), scale))
    return tensors, str(header.metadata.get("general.base_model.0.name") or "")


# ---- both ----------------------------------------------------------------------------------------


def _is_file(path: Path, what: str) -> bool:
    """Raises: ModelFilesError where that cannot be told."""
    try:
        return path.is_file()
    except OSError as error:
        raise ModelFilesError(
            f"{what}: {path.name} cannot be looked at: {error.strerror or error}; check path and rights"
        ) from error


def _info(tensor: RawTensor, name: str, unpermute_heads: int = 0, scale: float = 1.0) -> TensorInfo:
    place = tensor.file, tensor.offset, tensor.size_bytes
    return TensorInfo(name, tensor.shape, tensor.format, *place, unpermute_heads, scale)


def _check_two_axes(tensor: RawTensor, what: str) -> None:
    if len(tensor.shape) != 2 or min(tensor.shape) < 1:
        raise WeightsError(
            f"{what}: tensor {tensor.name!r} has the shape {list(tensor.shape)}; a matrix is needed"
        )
    if tensor.format not in UNPACKERS:
        raise WeightsError(
            f"{what}: tensor {tensor.name!r} is stored as {tensor.format!r}, which is not read"
        )


def _checked(
    path: Path, tensors: Iterable[TensorInfo], base: str, spec: ModelSpec, what: str
) -> AdapterFiles:
    """Pairs of matrices that fit the model's."""
    index = WeightIndex(tuple(sorted(tensors, key=lambda tensor: tensor.name)))
    if not index.tensors:
        raise WeightsError(f"{what}: it adapts nothing; fetch it again")
    if len(index.by_name) != len(index.tensors):
        raise WeightsError(f"{what}: two of its tensors adapt the same matrix; fetch it again")
    shapes = dict(expected_tensors(spec))
    for stem in sorted({tensor.name.rpartition(".")[0] for tensor in index.tensors}):
        if f"{stem}.lora_a" not in index or f"{stem}.lora_b" not in index:
            raise WeightsError(f"{what}: of {stem} one of the two matrices is missing; fetch it again")
        if f"{stem}.weight" not in shapes:
            raise WeightsError(
                f"{what}: it adapts {stem}, which {spec.architecture} of {spec.num_layers} layers has not; "
                "it was trained for another model"
            )
        a, b, (rows, columns) = index[f"{stem}.lora_a"], index[f"{stem}.lora_b"], shapes[f"{stem}.weight"]
        if (b.shape[0], a.shape[1]) != (rows, columns) or a.shape[0] != b.shape[1]:
            raise WeightsError(
                f"{what}: it adapts {stem} by {list(b.shape)} x {list(a.shape)} and the model has "
                f"{[rows, columns]} there; it was trained for another model"
            )
    used = {tensor.name.split(".")[-2] for tensor in index.tensors}
    rank = max(tensor.shape[0] for tensor in index.tensors if tensor.name.endswith(".lora_a"))
    return AdapterFiles(path, index, rank, tuple(part for part in PARTS if part in used), base)
