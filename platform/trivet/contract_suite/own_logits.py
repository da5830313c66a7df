"""A runner's own logits, so that its sampler is judged apart from its arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trivet.contract_suite.driver import Driver
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work
from trivet.contract_suite.subject import Subject


def own_logits(subject: Subject, driver: Driver, sequence: DrivenSequence) -> NDArray[np.float64]:
    """The runner's logits of the sequence's next token, as it reports them itself. [V]

    Reported are logprobs; the constant between them and the logits, which edits by a factor need, is the
    oracle's.
    """
    vocabulary = np.arange(driver.vocab_size, dtype=np.int32)
    row = RowSampling(draws=False, target=0)
    last = (sequence.num_left - 1,)
    step, output = driver.run([Work(sequence, sequence.num_left, last, (row,))], extra_ids=vocabulary)
    driver.rewind(step)
    assert output.extra_logprobs is not None
    logits = subject.oracle().logits(sequence.token_ids)[-1].astype(np.float64)
    constant = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    own: NDArray[np.float64] = output.extra_logprobs[0].astype(np.float64) + constant
    return own


def drawing_sequence(driver: Driver, seed: int = 1) -> DrivenSequence:
    """A sequence of 9 tokens whose next step draws."""
    sequence = driver.add(random_prompt(9, seed))
    driver.prefill(sequence)
    return sequence
