"""What transformers says in float32: `python score_by_transformers.py MODEL.gguf DOCUMENTS.jsonl`.

Runs with Trivet's own Python, which has it. Prints a JSON list: for each document the sums of its choices'
log probabilities, each choice after the question and a space, as lm-eval splits them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, documents: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    rows = [json.loads(line) for line in documents.read_text().splitlines()]
    print(json.dumps([_sums(model.eval(), tokenizer, row["question"], row["choices"]) for row in rows]))


@torch.inference_mode()
def _sums(model: torch.nn.Module, tokenizer: object, question: str, choices: list[str]) -> list[float]:
    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]

    prompt = ids(question)
    rows = [ids(f"{question} {choice}") for choice in choices]
    padded = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    logprobs = model(padded).logits.log_softmax(-1)  # causal: what pads behind changes nothing before
    return [
        sum(float(logprobs[n, at - 1, row[at]]) for at in range(len(prompt), len(row)))
        for n, row in enumerate(rows)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
