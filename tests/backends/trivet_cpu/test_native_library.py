"""Calls into the kernels in a process that may not have any more memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each prepares a call whose books take tens of MB, so that they cannot come from what malloc has left over.
PREPARATIONS = {
    "attend": """
count = 1_000_000
cache_data, rows = np.zeros(4096, np.uint8), np.zeros((count, 16), np.float32)
cache = Cache(kind=CacheKind.BF16, block_size=16, num_heads=1, head_dim=16, data=cache_data.ctypes.data)
starts, ones = np.arange(count + 1, dtype=np.int32), np.ones(count, np.int32)
layer = LayerQueries(ctypes.pointer(cache), 1, 0, rows.ctypes.data, 16)
zeros = np.zeros(count, np.int32)
seqs = StepSequences(count, starts.ctypes.data, ones.ctypes.data, zeros.ctypes.data, 1)

def call():
    library.trivet_attend_cache(pool, ctypes.byref(layer), ctypes.byref(seqs), 0)
""",
    "sample": """
size = 6_000_000
logits, scratch = np.zeros((1, size), np.float32), np.zeros((2, 2, size), np.float32)
int32, float32 = (lambda value: np.array([value], np.int32)), (lambda value: np.array([value], np.float32))
given = {
    "draws": np.ones(1, np.uint8), "target_ids": int32(-1), "top_k": int32(0), "temperature": float32(1),
    "top_p": float32(0.5), "min_p": float32(0), "uniform": np.full((1, 2), 0.5, np.float32),
    "token_ids": int32(0), "is_finite": np.zeros(1, np.uint8), "refused": np.zeros(1, np.uint8),
    "logprobs": float32(0), "ranks": int32(0),
}
rows = SamplingRows(
    logits=logits.ctypes.data, stride=size, scratch=scratch.ctypes.data, scratch_stride=size,
    num_tokens=size, num_rows=1, **{name: array.ctypes.data for name, array in given.items()}
)

def call():
    library.trivet_sample(pool, ctypes.byref(rows))
""",
}
PROGRAM = """
import ctypes, resource
import numpy as np
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import *

library = load_library(KernelCache().library(levels_of(Host().arch())[0]))
pool = library.trivet_pool_create(1)  # a helper would bring an arena of 64 MB for malloc
{preparation}
pages = int(open("/proc/self/statm").read().split()[0])
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), before[1]))
try:
    call()
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, before)
call()
print("goes on")
"""


@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_call_without_memory_is_an_error_and_the_process_goes_on(name: str) -> None:
    program = PROGRAM.format(preparation=PREPARATIONS[name])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    assert ended.stdout == "the kernels found no memory for the books of a step\ngoes on\n"
