"""What transformers says in float32: `python score_by_transformers.py MODEL.gguf DOCUMENTS.jsonl`.

Runs with Trivet's own Python, which has it. Prints a JSON list: for each document the sums of its choices'
log probabilities, each choice after the question and a space, as lm-eval splits them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from trivet.contract_suite.gguf_oracle import read_gguf_oracle
from trivet.contract_suite.oracle import Oracle

MAX_MODEL_LEN = 2048


def main(file: Path, documents: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    oracle = read_gguf_oracle(file, MAX_MODEL_LEN, len(tokenizer))
    sums = []
    for row in map(json.loads, documents.read_text().splitlines()):
        texts = [row["question"], *(f"{row['question']} {choice}" for choice in row["choices"])]
        prompt, *others = tokenizer(texts, add_special_tokens=False)["input_ids"]
        sums.append([_sum(oracle, ids, len(prompt)) for ids in others])
    print(json.dumps(sums))


def _sum(oracle: Oracle, ids: list[int], begin: int) -> float:
    """Of the tokens from `begin` on."""
    logits = oracle.logits(ids[:-1])[begin - 1 :].astype(np.float64)
    top = logits.max(-1)
    chosen = logits[np.arange(len(logits)), ids[begin:]]
    return float((chosen - top - np.log(np.exp(logits - top[:, None]).sum(-1))).sum())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
