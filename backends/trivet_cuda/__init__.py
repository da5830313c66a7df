"""NVIDIA GPUs: the torch-free half that finds them."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The CUDA backend; neither torch nor a library of NVIDIA is imported."""
    from trivet_cuda.backend import CudaBackend

    return CudaBackend()
