"""A backend without a model: deterministic tokens from what stands in the KV blocks, no torch."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The null backend; chosen by name only, never by "auto"."""
    from trivet_null.backend import NullBackend

    return NullBackend()
