"""Which GPUs CUDA_VISIBLE_DEVICES leaves to a process, told before CUDA is opened.

As CUDA reads it (CUDA programming guide, "CUDA Environment Variables"): numbers of GPUs, their UUIDs or an
unambiguous beginning of one, or instances of MIG; at the first name that it does not know it stops. Numbers
count in CUDA's own order, by default the fastest first, while NVML counts by PCI bus. A GPU in MIG mode that
is named itself shows the first of its instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trivet_cuda.nvml import Gpu

VISIBLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def hidden_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> dict[str, str]:
    """By uid, why a GPU that is there is out of use; those left out are visible."""
    text = environment.get(VISIBLE)
    if text is None:
        return {}
    names = {gpu.on.name for gpu in gpus if not gpu.fault}  # a lost one does not tell its name
    hidden = {gpu.uid: f"{VISIBLE}={text} of this process does not name it" for gpu in gpus}
    for name in map(str.strip, text.split(",") if text.strip() else ()):
        if name.isdigit() and environment.get(ORDER) != BY_BUS and len(names) > 1:
            reason = (
                f"{VISIBLE}={text} of this process counts in CUDA's own order, in which these unlike GPUs "
                f"stand unknown; set {ORDER}={BY_BUS} beside it, or name UUIDs"
            )
            return dict.fromkeys(hidden, reason)
        named = _named(name, gpus)
        if named is None:
            reason = f"{VISIBLE}={text} of this process: {name!r} names none or several, and CUDA stops there"
            return dict.fromkeys(hidden, reason)
        hidden.pop(named.uid, None)
    return hidden


def _named(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """None where it is none or several."""
    if name.isdigit():
        return next((gpu for gpu in gpus if gpu.on.number == int(name)), None)
    if name.startswith("MIG-"):
        return _one(name, {key: gpu for gpu in gpus for key in (gpu.uid, gpu.old_name)})
    if name.startswith("GPU-"):
        return _one(name, {gpu.on.uid: gpu for gpu in reversed(gpus)})  # the first instance stays
    return None


def _one(name: str, named: Mapping[str, Gpu]) -> Gpu | None:
    if name in named:
        return named[name]
    found = {gpu.uid: gpu for key, gpu in named.items() if key.startswith(name)}
    return next(iter(found.values())) if len(found) == 1 else None
