"""What a GPU, torch and Triton raise: which of it is lack of memory, which is final, and what would do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError

import torch

from trivet.errors import BackendError, DeviceLost, DoesNotFit, OutOfMemory

CURES = (
    (r"no kernel image|not compatible with the current PyTorch", "this torch was built for other GPUs"),
    (r"driver version is insufficient|driver.*too old", "install a newer driver, or torch for an older CUDA"),
    (r"uncorrectable ECC|ECC error", "the GPU's memory is faulty: nvidia-smi -q -d ECC tells more"),
    (r"No CUDA GPUs are available|no CUDA-capable device", "check CUDA_VISIBLE_DEVICES and nvidia-smi"),
    (r"NCCL|ncclUnhandled", "NCCL_DEBUG=INFO tells more; all ranks need the same network and NCCL"),
    (
        r"[Ff]ailed to find C compiler|Python\.h|(gcc|clang|cc)\b.*non-zero exit",
        "Triton compiles its launchers on this machine: install gcc and Python's headers (python3-dev)",
    ),
    (
        r"libcuda\.so cannot found|/sbin/ldconfig",
        "Triton asks /sbin/ldconfig for libcuda.so.1: run ldconfig, or set TRITON_LIBCUDA_PATH to its folder",
    ),
    (
        r"(Permission denied|Read-only|No space).*triton",
        "set TRITON_CACHE_DIR to a writable folder",
    ),
    (r"busy or unavailable", "another process has it for itself: nvidia-smi -q -d COMPUTE tells the mode"),
    (r"out of memory", "lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs"),
)
# What CUDA says once its context is beyond use (the "sticky" errors of its runtime API); the process has to
# end. Torch and Triton each put words of their own before it.
FATAL = re.compile(
    r"(CUDA error|Triton Error \[CUDA\]|CUDA driver error): (an illegal|unspecified launch failure"
    r"|device-side assert|misaligned|operation not supported on global|invalid program counter|uncorrectable"
    r"|the launch timed out|hardware stack error|context is destroyed|unknown error|[Ii]nvalid access of peer"
    r"|external device|[Tt]ensor [Mm]emory not|an exception occurred on the device)|Xid"
)
# Of the driver, cuBLAS or Triton; torch's own allocator has a class for it.
OUT_OF_MEMORY = re.compile(
    r"(CUDA error|Triton Error \[CUDA\]|CUDA driver error): out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)


def first_error(error: RuntimeError) -> RuntimeError:
    """That in whose handling the others were raised."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


def cure_for(text: str) -> str:
    """ "; " and what to do about an error of this text; empty where nothing is known."""
    return next((f"; {cure}" for pattern, cure in CURES if re.search(pattern, text)), "")


def is_fatal(error: Exception) -> bool:
    """Whether the context is beyond use: every later call fails, too."""
    return bool(FATAL.search(str(error)))


def is_out_of_memory(error: Exception) -> bool:
    """Whoever asked for the memory."""
    return isinstance(error, torch.OutOfMemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def as_step_failure(error: RuntimeError) -> OutOfMemory:
    """Raises: DeviceLost for a fault of the GPU; BackendError with a cure where it is anything else."""
    text = str(error)
    if is_out_of_memory(error):
        return OutOfMemory(
            f"the step ran out of the GPU's memory ({text}); lower max_num_batched_tokens or max_num_seqs"
        )
    if is_fatal(error):
        raise DeviceLost(f"the GPU failed: {text}{cure_for(text)}") from error
    raise BackendError(f"an operation of the GPU failed: {text}{cure_for(text)}") from error


def compiler_errors() -> tuple[type[Exception], ...]:
    """Triton's own, which are no RuntimeError; none where it is not installed.

    It compiles its launchers by gcc and keeps what it makes in files (triton/runtime/build.py, cache.py).
    """
    try:
        from triton.errors import TritonError
    except ImportError:  # the twins alone
        return ()
    return (TritonError, CalledProcessError, OSError)


@contextmanager
def told_in_words(does_not_fit: Callable[[], DoesNotFit]) -> Iterator[None]:
    """What torch, CUDA and Triton raise in a start, as what an operator reads.

    Args:
        does_not_fit: for lack of memory.

    Raises: DoesNotFit, BackendError, DeviceLost.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise does_not_fit() from error
        raise as_step_failure(error) from error
    except compiler_errors() as error:
        raise BackendError(
            f"a kernel cannot be made for this GPU: {type(error).__name__}: {error}{cure_for(str(error))}; "
            "with options.self_test on, its twin in plain torch runs instead"
        ) from error
