"""Which bytes of which device are spoken for: the plans of instances whose process may exist.

Nothing is stored. The instances of the registry are the ledger, so it cannot disagree with them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trivet.contract import DeviceInfo, MemoryPlan
from trivet_registry.instance_state import ALLOCATED_STATES, PROCESS_STATES
from trivet_registry.tables import Instance

Key = tuple[str, str]  # backend, uid


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reserved bytes by device."""

    reserved: Mapping[Key, int]
    unspent: Mapping[Key, int]  # of those, not yet taken from the device
    holders: Mapping[Key, Sequence[str]] = field(default_factory=dict)  # who reserved it, and how much
    returned: Mapping[Key, int] = field(default_factory=dict)  # by those who are thought to be gone

    def is_used(self, device: DeviceInfo) -> bool:
        return (device.kind, device.uid) in self.reserved

    def has_more_than(self, earlier: Ledger) -> bool:
        """Whether something was reserved since."""
        return any(size > earlier.reserved.get(key, 0) for key, size in self.reserved.items())

    def holders_on(self, devices: Iterable[DeviceInfo]) -> str:
        """The instances with a claim to these devices, for a sentence."""
        names = [name for d in devices for name in self.holders.get((d.kind, d.uid), ())]
        return ", ".join(dict.fromkeys(names)) or "other instances"

    def left_on(self, device: DeviceInfo) -> DeviceInfo:
        """The device with as many free bytes as no instance of ours has a claim to."""
        key = device.kind, device.uid
        free = min(
            device.free_bytes + self.returned.get(key, 0) - self.unspent.get(key, 0),
            device.total_bytes - self.reserved.get(key, 0),
        )
        return replace(device, free_bytes=max(0, free))

    def without_ours(self, device: DeviceInfo) -> DeviceInfo:
        """The device as it would be if none of our instances were there."""
        key = device.kind, device.uid
        spent = self.reserved.get(key, 0) - self.unspent.get(key, 0) + self.returned.get(key, 0)
        return replace(device, free_bytes=min(device.total_bytes, device.free_bytes + spent))


def ledger_of(instances: Iterable[Instance], gone: Collection[str] = ()) -> Ledger:
    """Each device of an instance carries the sum of its plan (a plan is of one rank).

    `gone`: ids of instances that are thought to have ended.
    """
    reserved: Counter[Key] = Counter()
    unspent: Counter[Key] = Counter()
    returned: Counter[Key] = Counter()
    holders: defaultdict[Key, list[str]] = defaultdict(list)
    for instance in instances:
        if instance.instance_state not in PROCESS_STATES or not instance.plan or not instance.backend:
            continue
        for uid in instance.device_uids or []:
            key = instance.backend, uid
            size_bytes = instance.plan.get("total_bytes", 0)
            is_spent = instance.instance_state in ALLOCATED_STATES
            if instance.id in gone:
                returned[key] += size_bytes if is_spent else 0
                continue
            reserved[key] += size_bytes
            holders[key].append(f"{instance.deployment.name} ({instance.id}, {size_bytes / 2**30:.2f} GiB)")
            if not is_spent:
                unspent[key] += size_bytes
    return Ledger(reserved, unspent, holders, returned)


def describe_plan(plan: MemoryPlan) -> dict[str, object]:
    """A plan as the registry keeps it and the API shows it."""
    return {
        "parts": [{"name": part.name, "size_bytes": part.size_bytes} for part in plan.parts],
        "total_bytes": plan.total_bytes,
        "num_blocks": list(plan.num_blocks),
        "block_size": plan.kv.block_size,
        "max_model_len": plan.max_model_len,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
    }
