"""The product's Ascend backend on a device that says what it is; what computes is a subclass's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from trivet.contract import DeviceInfo
from trivet.optional_contract import DeviceUsage
from trivet_ascend.backend import AscendBackend


class PretendedAscend(AscendBackend):
    """One device. No torch is imported here."""

    uid: ClassVar[str]
    device_name: ClassVar[str]
    total_bytes: ClassVar[int]
    # Tiny models have heads of 16 and 32: with "fused" they go through the fused operation all the same,
    # in bfloat16; in float32 attention is gathered.
    tested_options: Sequence[Mapping[str, str]] = ({"attention": "fused"},)

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """As the contract."""
        return [
            DeviceInfo(
                kind=self.name,
                index=0,
                uid=self.uid,
                name=self.device_name,
                arch="A2",
                total_bytes=self.total_bytes,
                free_bytes=self.total_bytes,
                dtypes=frozenset({"f32", "f16", "bf16"}),
            )
        ]

    def usage(self, timeout_s: float = 5.0) -> dict[str, DeviceUsage]:
        """Nobody has memory there: what an engine takes is the host's."""
        return {self.uid: DeviceUsage(0, self.total_bytes, users=())}
