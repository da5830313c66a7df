"""Turns pickled weights (`pytorch_model*.bin`) into safetensors, in a process of its own.

Only where the site allows pickles at all. PyTorch reads them with `weights_only=True`, which makes tensors
and refuses everything else; memory and processor time of the process are limited, and nothing of it remains.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from trivet.child_limits import limit_this_process
from trivet.errors import WeightsError
from trivet_registry.child_process import run_child
from trivet_registry.digests import Progress, ignore_progress
from trivet_registry.model_store.store import ModelStore

TIMEOUT_S = 3600.0
_FACTOR = 4  # address space for a file of so many bytes: the tensors twice, and torch
_TORCH_BYTES = 16 << 30  # of address space, little of it used


def as_safetensors(
    store: ModelStore, digests: Mapping[str, str], progress: Progress = ignore_progress
) -> dict[str, str]:
    """The same files, with safetensors in place of pickles. Raises: WeightsError naming the file."""
    pickles = sorted(name for name in digests if name.endswith(".bin"))
    kept = {n: d for n, d in digests.items() if not n.endswith((".bin", ".bin.index.json"))}
    for number, name in enumerate(pickles, 1):
        made = "model.safetensors" if len(pickles) == 1 else _piece(number, len(pickles))
        output = store.partial / f"convert-{secrets.token_hex(8)}"
        try:
            _convert(store.blob(digests[name]), output, name, lambda: progress(0))
            kept[made] = store.add_file(output)
        finally:
            output.unlink(missing_ok=True)
    if len(pickles) > 1:
        kept["model.safetensors.index.json"] = _index(store, kept)
    return kept


def _piece(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def _convert(source: Path, output: Path, name: str, check: Callable[[], None]) -> None:
    limit = source.stat().st_size * _FACTOR + _TORCH_BYTES
    command = [sys.executable, "-m", __name__, str(source), str(output), str(limit)]
    try:
        code, said = run_child(command, TIMEOUT_S, check)
    except TimeoutError:
        code, said = 1, f"it was not read within {TIMEOUT_S:.0f} s"
    if code != 0:
        reason = said.strip().splitlines()[-1:] or [f"its process ended with {code}"]
        raise WeightsError(f"{name} cannot be read as plain tensors: {reason[0][:500]}; use safetensors")


def _index(store: ModelStore, digests: Mapping[str, str]) -> str:
    """Of all pieces, as transformers writes it."""
    import msgspec

    from trivet.weights.safetensors import read_header

    pieces = {name: store.blob(digest) for name, digest in digests.items() if name.endswith(".safetensors")}
    weight_map = {tensor.name: name for name, blob in pieces.items() for tensor in read_header(blob)}
    file = store.partial / f"index-{secrets.token_hex(8)}"
    try:
        file.write_bytes(msgspec.json.encode({"metadata": {}, "weight_map": weight_map}))
        return store.add_file(file)
    finally:
        file.unlink(missing_ok=True)


def main() -> None:
    """`SOURCE OUTPUT ADDRESS_SPACE_BYTES`."""
    source, output, limit = sys.argv[1:]
    limit_this_process(TIMEOUT_S, int(limit))
    import torch
    from safetensors.torch import save_file

    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        tensors = {name: value.contiguous().clone() for name, value in loaded.items()}
        save_file(tensors, output, {"format": "pt"})
    except Exception as error:  # whatever a stranger's file makes of it is a reason
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
