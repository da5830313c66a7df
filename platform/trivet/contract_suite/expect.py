"""What cases assert about tokens and scores; each failure says where and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trivet.contract_suite.oracle import scores
from trivet.contract_suite.sampling_oracle import log_softmax
from trivet.contract_suite.subject import Subject
from trivet.engine.agreement import Scores, bound_of, compare

Float32 = NDArray[np.float32]


def expect_greedy(
    subject: Subject, prompt: Sequence[int], generated: Sequence[int], model: str = "llama"
) -> None:
    """Each generated token is the oracle's first choice after the tokens before it.

    A lossy dtype may choose another where the oracle itself sees less than twice the bound between them.
    """
    everything = [*prompt, *generated]
    rows = log_softmax(subject.oracle(model).logits(everything[:-1])[len(prompt) - 1 :])
    chosen = rows[np.arange(len(generated)), list(generated)]
    behind = rows.max(axis=-1) - chosen
    limit = 0.0 if subject.is_exact else 2 * bound_of(subject.dtype)
    wrong = np.flatnonzero(~(behind <= limit))
    if len(wrong):
        first = int(wrong[0])
        raise AssertionError(
            f"token {first} of {len(generated)} after a prompt of {len(prompt)} is {generated[first]}; the "
            f"oracle's is {int(rows[first].argmax())}, by {behind[first]:.3g} (allowed {limit:g})"
        )


def expect_vector(subject: Subject, measured: Float32, wanted: Float32) -> None:
    """Two vectors [hidden_size] point the same way and have the same length, as far as the dtype can tell."""
    least, most = (0.99999, 1e-4) if subject.is_exact else (0.99, 0.2)
    lengths = float(np.linalg.norm(measured)), float(np.linalg.norm(wanted))
    cosine = float(measured @ wanted) / (lengths[0] * lengths[1])
    error = float(np.abs(measured - wanted).max() / np.abs(wanted).max())
    assert cosine >= least, f"the cosine with the oracle's vector is {cosine:.6f} (at least {least})"
    assert error <= most, f"the largest error is {error:.3g} of the largest element (allowed {most:g})"


def expect_scores(
    subject: Subject,
    token_ids: Sequence[int],
    measured: Scores,
    model: str = "llama",
    *,
    start: int = 0,
) -> None:
    """Scores of the tokens after position `start` agree with the oracle's."""
    whole = scores(subject.oracle(model), token_ids)
    wanted = Scores(whole.logprobs[start:], whole.top_ids[start:], whole.margins[start:])
    assert len(measured.logprobs) == len(wanted.logprobs), (
        f"{len(measured.logprobs)} tokens were scored and {len(wanted.logprobs)} asked for"
    )
    agreement = compare(wanted, measured, "f32" if subject.is_exact else subject.dtype)
    if not agreement.agrees:
        errors = np.abs(wanted.logprobs - measured.logprobs)
        first = int(np.flatnonzero(~(errors <= agreement.bound) | (wanted.top_ids != measured.top_ids))[0])
        raise AssertionError(f"{agreement}; first at position {start + first} of {len(token_ids)} tokens")
