"""A GGUF file as a folder in Hugging Face layout, in bfloat16: `python gguf_to_hf.py FILE FOLDER`.

Runs in the environment that `prepare_peers` makes for conversions. transformers marks a model from a GGUF
file as quantised and refuses to save it, so the dequantised weights are copied into a plain one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OF_THE_QUANTISED = ("quantization_config", "transformers_version", "_name_or_path")


def convert(file: Path, folder: Path) -> None:
    """Raises: OSError; ValueError where transformers does not know the file's architecture."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    dequantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    fields = dequantised.config.to_dict() | {"architectures": [type(dequantised).__name__]}
    for name in OF_THE_QUANTISED:
        fields.pop(name, None)
    plain = type(dequantised)(type(dequantised.config)(**fields))
    plain.load_state_dict(dequantised.state_dict())
    plain.tie_weights()
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
