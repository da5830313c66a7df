"""Faults planted in the Triton kernels, each of which the interpreted tests have to find; by hand.

    tests/run cuda mutants [NAME...]

Each is written into a copy of the backend, over which the kernel tests run; exit code 1 where one passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = "trivet_cuda/kernels"
ATTENTION, ROWS = "test_attention_kernels.py", "test_row_kernels.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str
    test: str = ATTENTION


MUTANTS = (
    Mutant("no causal mask", "extend", "(tokens[None, :] <= positions[:, None])", "(tokens[None, :] >= 0)"),
    Mutant("causal off by one", "extend", "<= positions[:, None])", "<= positions[:, None] + 1)"),
    Mutant(
        "window off by one", "extend", "> positions[:, None] - WINDOW)", ">= positions[:, None] - WINDOW)"
    ),
    Mutant("decode window off by one", "decode", "seq_len - WINDOW, 0)", "seq_len - WINDOW - 1, 0)"),
    Mutant("sums are not rescaled", "scores", "sums * shrink[:, None] + share", "sums + share"),
    Mutant("totals are not rescaled", "scores", "total * shrink + tl.sum", "total + tl.sum"),
    Mutant("natural exponential", "scores", "return dots * (scale * LOG2_E)", "return dots * scale"),
    Mutant("soft cap forgotten", "scores", "if SOFT_CAP > 0:", "if SOFT_CAP > 1000:"),
    Mutant(
        "value scales forgotten", "scores", "weights = weights * value_scales[None, :]", "weights = weights"
    ),
    Mutant("key scales forgotten", "scores", "dots = dots * key_scales[None, :]", "dots = dots"),
    Mutant(
        "wrong slot stride",
        "scores",
        "(tokens % BLOCK_SIZE) * slot_stride",
        "(tokens % BLOCK_SIZE) * head_stride",
    ),
    Mutant("read past the end", "decode", "is_there = tokens < stop", "is_there = tokens < stop + 1"),
    Mutant("wrong query head", "extend", "kv_head * GROUP + rows % GROUP", "kv_head + rows % GROUP"),
    Mutant(
        "empty split counts",
        "decode",
        'highest + tl.log2(divisor), float("-inf"))',
        "highest + tl.log2(divisor), 0.0)",
    ),
    Mutant(
        "wrong base of the logarithm", "decode", "highest + tl.log2(divisor)", "highest + tl.log(divisor)"
    ),
    Mutant("one split is left out", "decode", "total += share", "total += share * (split > 0)"),
    Mutant("padding is written", "kv_write", "is_real = slot >= 0", "is_real = slot >= -1"),
    Mutant("int8 is cut, not rounded", "kv_write", "tl.floor(ratio + 0.5)", "tl.floor(ratio)"),
    Mutant(
        "float8 is not clamped",
        "kv_write",
        "k = tl.clamp(k.to(tl.float32), -448.0, 448.0)",
        "k = tl.clamp(k.to(tl.float32), -44.0, 44.0)",
    ),
    Mutant(
        "norm without the sum", "rms_norm", "values = rounded.to(tl.float32)", "values = values * 0.5", ROWS
    ),
    Mutant("eps outside the root", "rms_norm", "/ SIZE + eps)", "/ SIZE) + eps * 1000", ROWS),
    Mutant("rotation the other way", "rope", "first * c - second * s", "first * c + second * s", ROWS),
    Mutant(
        "keys by the queries' norm", "rope", "is_q = heads < NUM_Q_HEADS", "is_q = heads < NUM_HEADS", ROWS
    ),
    Mutant("gate and up change places", "swiglu", "(active * up)", "(gate * up)", ROWS),
    Mutant("nibbles backwards", "group_matmul", "tl.arange(0, 8) * 4", "(7 - tl.arange(0, 8)) * 4", ROWS),
    Mutant(
        "offsets forgotten",
        "group_matmul",
        "* scale[:, None, :] + offset[:, None, :]",
        "* scale[:, None, :]",
        ROWS,
    ),
    Mutant(
        "a run of K is done twice",
        "group_matmul",
        "start = split * steps * BLOCK_K",
        "start = 0 * steps * BLOCK_K",
        ROWS,
    ),
)


def survives(mutant: Mutant) -> bool:
    """Whether the tests pass over the faulty copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "trivet_cuda")
        shutil.copytree(ROOT / "backends/trivet_cuda", copy)
        file = Path(folder, KERNELS, f"{mutant.file}.py")
        source = file.read_text()
        if mutant.before not in source:
            raise SystemExit(f"{mutant.name}: {mutant.file}.py has no line {mutant.before!r} any more")
        file.write_text(source.replace(mutant.before, mutant.after))
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"tests/cuda/interpreted/{mutant.test}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
        )
    return done.returncode == 0


def main() -> int:
    wanted = sys.argv[1:]
    survivors = []
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        alive = survives(mutant)
        print(f"{'SURVIVED' if alive else 'found':8} {mutant.name}", flush=True)
        if alive:
            survivors.append(mutant.name)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
