"""Every architecture that has a ModelSpec, tiny and random; and the real SmolLM2."""

from __future__ import annotations

import pytest

from trivet.contract_suite.expect import expect_greedy, expect_scores
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.subject import GGUF_MODEL, Subject
from trivet.contract_suite.tiny_models import MODELS, ORIGINAL_LEN

SOUND_MODELS = sorted(name for name, recipe in MODELS.items() if not recipe.is_poisoned)

# "The water of a river flows from the mountains to the sea. ...", as SmolLM2's tokenizer has it.
# fmt: off
REAL_PROMPT = [
    504, 913, 282, 253, 4626, 8634, 429, 260, 8718, 288, 260, 3426, 30, 1985, 624, 970, 357, 6497, 20257, 28,
    11046, 7761, 284, 17586, 3705, 30, 7655, 357, 314, 2890, 357, 22702, 1187, 4903, 28, 284, 837, 357, 314,
    3538, 357, 2047, 99, 253, 4463, 327, 2581, 281, 260, 4022, 30, 533, 216, 33, 40, 37, 38, 260, 7460, 6090,
    216, 33, 34, 28, 36, 32, 32, 16992, 13897, 253, 1796, 2141, 260, 1573, 7395, 30,
]
# fmt: on


@pytest.mark.parametrize("model", SOUND_MODELS)
def test_an_architecture_computes_what_transformers_computes(subject: Subject, model: str) -> None:
    """Past the original context of the rope types, in chunks, then greedily on."""
    if not subject.has_weights and model != "llama":
        pytest.skip(f"backend {subject.backend.name} computes one function whatever the model")
    if not subject.accepts(subject.config(), model):
        pytest.skip(f"backend {subject.backend.name} does not run {model}")
    driver = subject.driver(model)
    prompt = random_prompt(ORIGINAL_LEN + 60, 1)
    sequence = driver.add(prompt)
    expect_scores(subject, prompt, driver.score(sequence, chunk=50), model)
    mate = driver.add(random_prompt(11, 2))
    driver.generate([sequence, mate], 12)
    expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :], model)
    expect_greedy(subject, mate.token_ids[:11], mate.token_ids[11:], model)


def test_the_real_model_computes_what_transformers_computes(subject: Subject) -> None:
    """SmolLM2-135M from its GGUF file; the oracle has the weights that the gguf package dequantises."""
    if not subject.has_weights:
        pytest.skip(f"backend {subject.backend.name} computes one function whatever the model")
    driver = subject.driver(GGUF_MODEL)
    sequence = driver.add(REAL_PROMPT)
    expect_scores(subject, REAL_PROMPT, driver.score(sequence, chunk=50), GGUF_MODEL)
    driver.generate([sequence], 12)
    expect_greedy(subject, REAL_PROMPT, sequence.token_ids[len(REAL_PROMPT) :], GGUF_MODEL)
