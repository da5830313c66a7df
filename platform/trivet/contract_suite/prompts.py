"""Token ids that cases feed to models."""

from __future__ import annotations

import numpy as np

from trivet.contract_suite.tiny_models import NUM_TOKENS

FIRST_PLAIN_TOKEN = 20  # below stand the end token and the poisoned ones


def random_prompt(length: int, seed: int) -> list[int]:
    """Plain tokens that every tiny model has, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return [int(token) for token in generator.integers(FIRST_PLAIN_TOKEN, NUM_TOKENS, length)]
