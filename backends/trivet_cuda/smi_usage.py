"""Asks nvidia-smi how busy GPUs are, where nvidia-ml-py is not installed. Two processes of about a second."""

from __future__ import annotations

from trivet.optional_contract import DeviceUsage, DeviceUser
from trivet.probing import run_tool

MIB = 1 << 20
FIELDS = ("uuid", "memory.used", "memory.total", "utilization.gpu", "temperature.gpu", "power.draw")
USERS = ("gpu_uuid", "pid", "used_gpu_memory")


def usage_by_smi(nvidia_smi: str, timeout_s: float) -> dict[str, DeviceUsage]:
    """By UUID; without the GPUs that do not tell their memory. Never raises."""
    lines = _table(nvidia_smi, f"--query-gpu={','.join(FIELDS)}", len(FIELDS), timeout_s)
    users = _users(nvidia_smi, timeout_s) if lines else None
    return {
        uid: DeviceUsage(
            used_bytes=int(used) * MIB,
            total_bytes=int(total) * MIB,
            utilisation_percent=_whole(busy),
            temperature_c=_whole(temperature),
            power_w=_number(power),
            users=None if users is None else tuple(users.get(uid, ())),
        )
        for uid, used, total, busy, temperature, power in lines or ()
        if used.isdigit() and total.isdigit()
    }


def _users(nvidia_smi: str, timeout_s: float) -> dict[str, list[DeviceUser]] | None:
    """By UUID; None where it does not tell. Those of other pid namespaces are left out, as by NVML."""
    lines = _table(nvidia_smi, f"--query-compute-apps={','.join(USERS)}", len(USERS), timeout_s)
    if lines is None:
        return None
    found: dict[str, list[DeviceUser]] = {}
    for uid, pid, used in lines:
        if pid.isdigit():
            used_bytes = int(used) * MIB if used.isdigit() else None
            found.setdefault(uid, []).append(DeviceUser(int(pid), used_bytes))
    return found


def _table(nvidia_smi: str, query: str, num_cells: int, timeout_s: float) -> list[list[str]] | None:
    """Its lines of so many cells; None where it fails."""
    output = run_tool([nvidia_smi, query, "--format=csv,noheader,nounits"], timeout_s)
    if output.failure:
        return None
    lines = [[cell.strip() for cell in line.split(",")] for line in output.text.splitlines()]
    return [cells for cells in lines if len(cells) == num_cells]


def _whole(cell: str) -> int | None:
    return int(cell) if cell.isdigit() else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # "[N/A]"
        return None
