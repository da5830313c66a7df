"""Random adapters (LoRA) in PEFT's layout, and the oracle of one: its matrices merged into the model.

The oracle reads the files with the library of their format and does PEFT's arithmetic itself:
W + scale * B A, scale = alpha / rank, or alpha / sqrt(rank).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivet.contract import AdapterSlots
from trivet.models.adapter_files import PARTS
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import ModelSpec

MODULES: Mapping[str, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class TinyAdapter:
    """An adapter to make."""

    rank: int
    alpha: float
    parts: tuple[str, ...]
    is_rslora: bool = False


# All matrices; two of attention; one, with the other scale, and a rank that no block of a kernel divides.
ADAPTERS: Mapping[int, TinyAdapter] = {
    1: TinyAdapter(8, 16.0, PARTS),
    2: TinyAdapter(4, 8.0, ("q", "v")),
    3: TinyAdapter(5, 4.0, ("down", "o"), is_rslora=True),
}
SLOTS = AdapterSlots(num_slots=3, max_rank=8, parts=PARTS)


def make_tiny_adapter(spec: ModelSpec, index: int, folder: Path, size: float = 1.0) -> Path:
    """Save the adapter of that index for a model with `spec` in the new folder `folder`.

    Args: size of what it adds, beside that which changes a tiny model's tokens.
    """
    from safetensors.numpy import save_file

    recipe, random = ADAPTERS[index], np.random.default_rng(index)
    shapes, tensors = dict(expected_tensors(spec)), {}
    reach = 0.15 * size * recipe.rank**-0.5
    for layer in range(spec.num_layers):
        for part in recipe.parts:
            rows, columns = shapes[f"layers.{layer}.{part}.weight"]
            stem = f"base_model.model.model.layers.{layer}.{MODULES[part]}"
            tensors[f"{stem}.lora_A.weight"] = _normal(random, recipe.rank, columns, columns**-0.5)
            tensors[f"{stem}.lora_B.weight"] = _normal(random, rows, recipe.rank, reach)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": recipe.rank,
        "lora_alpha": recipe.alpha,
        "use_rslora": recipe.is_rslora,
        "target_modules": [MODULES[part].rpartition(".")[2] for part in recipe.parts],
        "bias": "none",
        "base_model_name_or_path": "tiny",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge_adapter(model: Any, folder: Path) -> None:
    """Into a model of transformers in float32."""
    import torch
    from safetensors.numpy import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    rank = config["r"] ** 0.5 if config["use_rslora"] else config["r"]
    with torch.no_grad():
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                stem = name.removesuffix(".lora_A.weight")
                delta = config["lora_alpha"] / rank * (tensors[f"{stem}.lora_B.weight"] @ a)
                module = model.get_submodule(stem.removeprefix("base_model.model."))
                module.weight.add_(torch.from_numpy(np.ascontiguousarray(delta, np.float32)))


def _normal(random: np.random.Generator, rows: int, columns: int, scale: float) -> NDArray[np.float32]:
    return (scale * random.standard_normal((rows, columns))).astype(np.float32)
