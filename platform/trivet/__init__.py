"""Trivet: one self-hosted platform that serves large language models over mixed hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncClient",
    "BeamSearchParams",
    "Client",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "LoRARequest",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]

if TYPE_CHECKING:
    from trivet.adapters import LoRARequest
    from trivet.beam_search import BeamSearchParams
    from trivet.client import AsyncClient, Client
    from trivet.llm import LLM
    from trivet.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        RequestOutput,
        ScoringRequestOutput,
    )
    from trivet.sampling_params import SamplingParams
    from trivet.structured_outputs import StructuredOutputsParams

_HOME = {
    "LLM": "trivet.llm",
    "AsyncClient": "trivet.client",
    "BeamSearchParams": "trivet.beam_search",
    "Client": "trivet.client",
    "CompletionOutput": "trivet.outputs",
    "EmbeddingRequestOutput": "trivet.outputs",
    "LoRARequest": "trivet.adapters",
    "RequestOutput": "trivet.outputs",
    "SamplingParams": "trivet.sampling_params",
    "ScoringRequestOutput": "trivet.outputs",
    "StructuredOutputsParams": "trivet.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import trivet` itself must stay cheap for the supervisor and the CLI."""
    if name not in _HOME:
        raise AttributeError(f"module 'trivet' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
