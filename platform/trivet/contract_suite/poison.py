"""How a case gets a sequence whose KV is not a number."""

from __future__ import annotations

import pytest

from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_models import INF_TOKEN, NAN_TOKEN


def poisoned(subject: Subject) -> tuple[str, dict[str, str]]:
    """A model and options under which each of `bad_tokens` spoils its own sequence.

    With weights it is a model with bad embedding rows; a backend without weights may have an option
    `nan_token`.
    """
    if subject.has_weights:
        return "poisoned", {}
    options = {"nan_token": str(NAN_TOKEN)}
    if not subject.accepts(subject.config(options=options)):
        pytest.skip(f"backend {subject.backend.name} has neither weights nor an option nan_token")
    return "llama", options


def bad_tokens(subject: Subject) -> list[int]:
    """Tokens that make their sequence NaN."""
    return [NAN_TOKEN, INF_TOKEN] if subject.has_weights else [NAN_TOKEN]
