"""A plugin for tests: the CUDA backend interpreted, found where this folder is on sys.path."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The backend "cuda-interpreted"; it imports no torch."""
    from trivet_cuda_interpreted.backend import InterpretedCuda

    return InterpretedCuda()
