"""What is known of a model before any of its weights are read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec
    from trivet.weights.index import WeightIndex


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model as its files describe it.

    Without a spec (`spec_missing_because` says why) only the transformers fallback can run it; `weights` then
    has the files' own tensor names.
    """

    path: Path  # the folder, or the (first) GGUF file
    format: str  # "safetensors" | "gguf"
    name: str
    architecture: str  # "LlamaForCausalLM"
    spec: ModelSpec | None
    weights: WeightIndex
    quantization: str  # the format of most weights: "bf16", "q4_1"
    context_length: int
    eos_token_ids: tuple[int, ...]  # of config, generation config, tokenizer, GGUF; any ends a sequence
    bos_token_id: int | None
    chat_templates: Mapping[str, str]  # "default", and "tool_use" for requests with tools
    generation_defaults: dict[str, float]  # by the names of SamplingParams
    files: tuple[Path, ...]
    size_bytes: int  # of all files
    licence: str | None
    config: Mapping[str, Any]  # config.json, or GGUF metadata without the vocabulary
    num_tokens: int | None = None  # ids that the tokenizer can make, where that is known
    spec_missing_because: str | None = None

    @property
    def chat_template(self) -> str | None:
        """The text of all of them; None: it has none."""
        return "\n".join(self.chat_templates.values()) or None


def commonest_format(weights: WeightIndex) -> str:
    """The format that holds most numbers; norms and biases are too small to matter."""
    counts: Counter[str] = Counter()
    for tensor in weights.tensors:
        counts[tensor.format] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0] if counts else "none"


def total_bytes(files: tuple[Path, ...]) -> int:
    """Size of the files on disk, links followed."""
    return sum(file.stat().st_size for file in files)
